import type { Connection } from "./connection.ts";

/**
 * Tells the connection what the page learns about its network. After a laptop has slept or has
 * changed its network, sockets can be dead without an event that says so. Before the browser puts
 * a page aside for its back and forward buttons, the page must close its sockets. The returned
 * function ends the watching.
 */
export function watchNetwork(connection: Connection): () => void {
  const page = globalThis as Partial<Pick<Window, "addEventListener">>;
  if (typeof page.addEventListener !== "function") return () => {}; // Node
  const watched = new AbortController();
  const { signal } = watched;
  const changed = () => connection.networkChanged();
  page.addEventListener("online", changed, { signal });
  page.addEventListener("pagehide", () => connection.suspend(), { signal });
  page.addEventListener("pageshow", () => connection.resume(), { signal });
  globalThis.document?.addEventListener(
    "visibilitychange",
    () => {
      if (globalThis.document.visibilityState === "visible") changed();
    },
    { signal },
  );
  return () => watched.abort();
}

import type { Connection } from "./connection.ts";

/**
 * Tells the connection what a page learns about its network: a laptop that has slept, or
 * is in another network, has sockets that are dead and do not know it. A page that
 * the browser puts aside must have none. The result ends that.
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

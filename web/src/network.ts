import type { Connection } from "./connection.ts";

/**
 * Tells the connection what a page learns about its network: a laptop that has slept, or
 * is in another network, has sockets that are dead and do not know it. A page that
 * the browser puts aside must have none. The result ends that.
 */
export function watchNetwork(connection: Connection): () => void {
  const page = globalThis as Partial<Pick<Window, "addEventListener" | "removeEventListener">>;
  if (typeof page.addEventListener !== "function") return () => {}; // Node
  const changed = () => connection.networkChanged();
  const visible = () => {
    if (globalThis.document.visibilityState === "visible") changed();
  };
  const hide = () => connection.disconnect();
  page.addEventListener("online", changed);
  page.addEventListener("pagehide", hide);
  globalThis.document?.addEventListener("visibilitychange", visible);
  return () => {
    page.removeEventListener?.("online", changed);
    page.removeEventListener?.("pagehide", hide);
    globalThis.document?.removeEventListener("visibilitychange", visible);
  };
}

import type { Session } from "./session.ts";
import { maxTimer } from "./timer.ts";

const patience = 10_000; // how long an answer to PING may take, in milliseconds

/**
 * Detects a lost server when the connection was not closed, for example after a laptop has slept.
 * While calls are open or the page serves calls, it sends a PING when the server has
 * been silent for some time. It sends PINGs no more often than the server allows.
 */
export class Keepalive {
  readonly #session: Session;
  readonly #interval: number;
  readonly #lost: (why: string) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #pinged = Number.NEGATIVE_INFINITY; // when the last PING left

  /** interval is in milliseconds. If it is 0, only probe sends PINGs. */
  constructor(session: Session, interval: number, lost: (why: string) => void) {
    this.#session = session;
    this.#interval = interval;
    this.#lost = lost;
    if (interval > 0) this.#wait();
  }

  /** The minimum time between two PINGs, in milliseconds. It is a tenth more than the server asks for, because the network may delay one PING and not the next. */
  get #least(): number {
    const { peer, busy } = this.#session;
    return 1.1 * (busy ? peer.ping : peer.idlePing);
  }

  #wait(): void {
    const interval = Math.max(this.#interval, this.#least);
    const last = () => Math.max(this.#session.heardAt, this.#pinged);
    const due = this.#session.wanted ? last() + interval - performance.now() : interval;
    this.#timer = setTimeout(
      () => {
        if (this.#session.wanted && performance.now() - last() >= interval) this.#ping();
        else this.#wait();
      },
      Math.min(Math.max(due, 100), maxTimer),
    );
  }

  #ping(): void {
    clearTimeout(this.#timer);
    this.#pinged = performance.now();
    void this.#session.ping().then(() => {
      clearTimeout(this.#timer);
      if (this.#interval > 0 && !this.#session.why) this.#wait();
    });
    this.#expect(true);
  }

  /** Gives the server time to answer. If the timer fires late, the page has slept, and the answer may be late, too: the server gets another chance. */
  #expect(again: boolean): void {
    const began = performance.now();
    this.#timer = setTimeout(() => {
      if (again && performance.now() - began > 1.5 * patience) this.#expect(false);
      else this.#lost(`the server has not answered a PING for ${patience / 1000} s`);
    }, patience);
  }

  /** Sends a PING now, if the last one is old enough. */
  probe(): void {
    if (this.#session.why || performance.now() - this.#pinged < Math.max(this.#least, patience)) return;
    this.#ping();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

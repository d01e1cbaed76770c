import { create } from "@bufbuild/protobuf";
import { type Draw, DrawSchema, type Part, PartSchema } from "./gen/board_pb.ts";

/** The strokes on the board, of this page and of others. */
export class Strokes {
  readonly #author = crypto.getRandomValues(new Uint32Array(1))[0] as number;
  readonly #all = new Map<string, Part>(); // each from its start
  readonly #paint: (xy: number[], color: number) => void;
  #own: Part[] = [];
  #count = 0; // own strokes so far, with those that were removed
  #clears = false; // the people of this page want an empty board
  #wake = () => {};

  /** paint is called with what is new of a stroke, and the point before. */
  constructor(paint: (xy: number[], color: number) => void) {
    this.#paint = paint;
  }

  /** Begins a stroke of this page. */
  begin(color: number, x: number, y: number): void {
    const part = create(PartSchema, { author: this.#author, stroke: this.#count++, color });
    this.#own.push(part);
    this.#all.set(keyOf(part), part);
    this.extend(x, y);
  }

  /** Adds a point to the last stroke of this page. */
  extend(x: number, y: number): void {
    const part = this.#own.at(-1);
    if (!part) return; // it was cleared
    part.xy.push(x, y);
    this.#paint(part.xy.slice(-4), part.color);
    this.#wake();
  }

  /** Takes a part of a stroke from the board. */
  take(part: Part): void {
    const known = this.#all.get(keyOf(part));
    if (!known) this.#all.set(keyOf(part), part);
    const from = known?.xy.length ?? 0;
    const fresh = part.xy.slice(Math.max(from - 2 * part.start, 0));
    if (fresh.length === 0) return;
    this.#paint([...(known?.xy.slice(-2) ?? []), ...fresh], part.color);
    known?.xy.push(...fresh);
  }

  /** Asks the board to remove all strokes. */
  clear(): void {
    this.#clears = true;
    this.#wake();
  }

  /** Removes all strokes, because the board has. */
  cleared(): void {
    this.#all.clear();
    this.#own = [];
  }

  /**
   * What this page draws, from its first stroke on: a board that was restarted has lost
   * them. What is drawn while the last message has not left goes into the next one.
   */
  async *drawn(signal: AbortSignal): AsyncGenerator<Draw> {
    const sent = new Map<Part, number>();
    signal.addEventListener("abort", () => this.#wake());
    while (!signal.aborted) {
      if (this.#clears) {
        this.#clears = false;
        yield create(DrawSchema, { what: { case: "clear", value: {} } });
      }
      let written = false;
      for (const part of this.#own) {
        const from = sent.get(part) ?? 0;
        if (from === part.xy.length) continue;
        sent.set(part, part.xy.length);
        written = true;
        yield create(DrawSchema, {
          what: { case: "part", value: { ...part, start: from / 2, xy: part.xy.slice(from) } },
        });
      }
      if (!written && !this.#clears && !signal.aborted)
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
    }
  }
}

function keyOf({ author, stroke }: Part): string {
  return `${author} ${stroke}`;
}

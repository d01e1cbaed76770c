/** A queue, first in, first out. It does not use Array.shift, which moves all remaining items if the array is long. */
export class Queue<T> {
  #items: (T | undefined)[] = [];
  #first = 0; // the index of the first item; those before it were taken

  get length(): number {
    return this.#items.length - this.#first;
  }

  push(item: T): void {
    this.#items.push(item);
  }

  /** Removes and returns the first item, or undefined if there is none. */
  shift(): T | undefined {
    if (this.length === 0) return undefined;
    const item = this.#items[this.#first];
    this.#items[this.#first++] = undefined;
    if (2 * this.#first > this.#items.length) {
      this.#items = this.#items.slice(this.#first);
      this.#first = 0;
    }
    return item;
  }

  clear(): void {
    this.#items = [];
    this.#first = 0;
  }
}

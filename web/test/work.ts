// Counts the work of code, which a busy machine does not change.

type Method = (...args: unknown[]) => unknown;

const arrays = Object.getPrototypeOf(Uint8Array.prototype) as object; // of all kinds of typed arrays
const lengthOf = (x: unknown) => (x as { length: number }).length;

/** What is counted, and how much a use of it counts. */
const counted: [object: object, method: string, cost: (self: unknown, args: unknown[], result: unknown) => number][] = [
  [arrays, "set", (_, args) => lengthOf(args[0])],
  [arrays, "slice", (_, __, result) => lengthOf(result)],
  [Array.prototype, "shift", (self) => lengthOf(self)],
  [Array.prototype, "slice", (_, __, result) => lengthOf(result)],
  [Array.prototype, "splice", (self) => lengthOf(self)],
  [RegExp.prototype, "test", (_, args) => lengthOf(args[0])],
  [String.prototype, "charCodeAt", () => 1],
  [String, "fromCharCode", () => 1],
];

/**
 * Runs code, and returns how many bytes, elements and characters it has copied, moved, made or
 * looked at one by one.
 */
export async function work(run: () => unknown): Promise<number> {
  let n = 0;
  const restore: (() => void)[] = [];
  for (const [object, name, cost] of counted) {
    const methods = object as Record<string, Method>;
    const method = methods[name] as Method;
    methods[name] = function (this: unknown, ...args: unknown[]) {
      const before = name === "shift" || name === "splice" ? cost(this, args, undefined) : 0;
      const result = method.apply(this, args);
      n += before || cost(this, args, result);
      return result;
    };
    restore.push(() => {
      methods[name] = method;
    });
  }
  const Bytes = globalThis.Uint8Array;
  globalThis.Uint8Array = new Proxy(Bytes, {
    construct(target, args, self) {
      const b = Reflect.construct(target, args, self) as Uint8Array;
      if (!(args[0] instanceof ArrayBuffer)) n += b.length;
      return b;
    },
  });
  restore.push(() => {
    globalThis.Uint8Array = Bytes;
  });
  try {
    await run();
  } finally {
    for (const f of restore) f();
  }
  return n;
}

// The calls of a cell of the table of docs/semantics.md.

import { createFileRegistry, type DescMethodStreaming, type DescMethodUnary, fromBinary } from "@bufbuild/protobuf";
import { base64Decode } from "@bufbuild/protobuf/wire";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import type { Transport } from "@connectrpc/connect";

/** A cell, as in table_test.go of interop/clients. */
export interface Cell {
  Client: string;
  Protocol: string;
  Version: string;
  Address: string;
  TLS: boolean;
  CA: string;
  Cert: string;
  Key: string;
  ALPN: string;
  Err: string;
  Skip: string;
}

/** The methods of the service. */
export class Orders {
  readonly place: DescMethodUnary;
  readonly list: DescMethodStreaming;
  readonly haggle: DescMethodStreaming;

  constructor(files: string) {
    const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, base64Decode(files)));
    const method = registry.getService("nearcall.examples.orders.Orders")?.method ?? {};
    this.place = method.place as DescMethodUnary;
    this.list = method.list as DescMethodStreaming;
    this.haggle = method.haggle as DescMethodStreaming;
  }
}

const late = 30_000; // milliseconds; no call takes so long

/** Makes the calls of a cell, and sets what they were like. */
export async function callAll(cell: Cell, orders: Orders, transport: Transport, bidi: boolean): Promise<void> {
  try {
    cell.ALPN = await place(orders, transport);
    await list(orders, transport);
    if (bidi) await haggle(orders, transport);
  } catch (e) {
    cell.Err = String(e);
  }
}

async function place({ place }: Orders, transport: Transport): Promise<string> {
  const request = { customer: "ann", item: "tea", quantity: 1 };
  const { message } = await transport.unary(place, undefined, late, undefined, request);
  const order = message as unknown as { id: bigint; customer: string; item: string; quantity: number };
  if (order.id !== 1n || order.customer !== "ann" || order.quantity !== 1) throw new Error(`order ${order.id}`);
  return order.item;
}

async function list({ list }: Orders, transport: Transport): Promise<void> {
  const request = async function* () {
    yield { customer: "ann" };
  };
  let n = 0;
  const { message } = await transport.stream(list, undefined, late, undefined, request());
  for await (const _ of message) n++;
  if (n !== 100) throw new Error(`${n} orders`);
}

/** Makes offers, each after the answer to the last one. */
async function haggle({ haggle }: Orders, transport: Transport): Promise<void> {
  let answered: (cents: number) => void = () => {};
  const offers = async function* () {
    for (const cents of [7, 8]) {
      const answer = new Promise<number>((resolve) => {
        answered = resolve;
      });
      yield { cents };
      const asked = await answer;
      if (asked !== cents) throw new Error(`the answer to ${cents} is ${asked}`);
    }
  };
  let n = 0;
  const { message } = await transport.stream(haggle, undefined, late, undefined, offers());
  for await (const answer of message) {
    n++;
    answered((answer as unknown as { askCents: number }).askCents);
  }
  if (n !== 2) throw new Error(`${n} answers`);
}

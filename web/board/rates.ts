import { createClient, type Transport } from "@connectrpc/connect";
import { Board } from "./gen/board_pb.ts";

/** Returns how many calls a second the page makes with a transport, one after another. */
export async function roundTrips(transport: Transport): Promise<number> {
  const client = createClient(Board, transport);
  await client.echo({ text: "connect first" });
  const begun = performance.now();
  let calls = 0;
  for (; performance.now() - begun < 1000; calls++) {
    const { text } = await client.echo({ text: `call ${calls}` });
    if (text !== `call ${calls}`) throw new Error(`the answer is ${text}`);
  }
  return (1000 * calls) / (performance.now() - begun);
}

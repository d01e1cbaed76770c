// The page of connect/example.

import { ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { createNearcallTransport } from "@nearcall/web";
import { Greeter } from "./gen/greet_pb.ts";

const overSocket = createClient(Greeter, createNearcallTransport({ url: "/calls" }));
const overHTTP = createClient(Greeter, createConnectTransport({ baseUrl: location.origin }));

function show(text: string): void {
  const line = document.createElement("li");
  line.textContent = text;
  document.getElementById("replies")?.append(line);
}

/** A stream both ways, until it ends. */
class Meeting {
  readonly #guests: string[] = [];
  #wake = () => {};

  /** Sends the name of a guest. */
  add(name: string): void {
    this.#guests.push(name);
    this.#wake();
  }

  async *#arriving(): AsyncGenerator<{ name: string }> {
    for (;;) {
      for (let name = this.#guests.shift(); name !== undefined; name = this.#guests.shift()) yield { name };
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** Shows the greetings. */
  async run(): Promise<void> {
    for await (const { text } of overSocket.meet(this.#arriving())) show(text);
  }
}

let meeting: Meeting | undefined;

/** Greets name on the stream that is open, or on a new one. */
async function meet(name: string): Promise<void> {
  if (meeting) return meeting.add(name);
  meeting = new Meeting();
  meeting.add(name);
  await meeting.run().finally(() => {
    meeting = undefined;
  });
}

const ways: Record<string, (name: string) => Promise<void>> = {
  socket: async (name) => show((await overSocket.greet({ name })).text),
  http: async (name) => show((await overHTTP.greet({ name })).text),
  meet,
};

const form = document.forms[0] as HTMLFormElement;
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const data = new FormData(form, event.submitter);
  ways[String(data.get("way"))]?.(String(data.get("name"))).catch((e) => show(ConnectError.from(e).message));
});

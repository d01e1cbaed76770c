// The page of examples/board.

import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { createNearcallTransport } from "@nearcall/web";
import { Board } from "./gen/board_pb.ts";
import { roundTrips } from "./rates.ts";
import { Strokes } from "./strokes.ts";

const overSocket = createNearcallTransport({ url: "/calls" });
const overHTTP = createConnectTransport({ baseUrl: location.origin, useBinaryFormat: true });

const colors = ["#24292f", "#cf222e", "#0969da", "#1a7f37", "#bf8700", "#8250df"];
const again = 300; // milliseconds until the page joins again

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const canvas = element<HTMLCanvasElement>("board");
const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
pen.lineWidth = 5;
pen.lineCap = pen.lineJoin = "round";

/** Draws a line through points; two numbers are a point. */
function paint(xy: number[], color: number): void {
  pen.strokeStyle = colors[color % colors.length] as string;
  pen.beginPath();
  pen.moveTo(xy[0] as number, xy[1] as number);
  for (let i = 0; i < xy.length; i += 2) pen.lineTo(xy[i] as number, xy[i + 1] as number);
  pen.stroke();
}

const strokes = new Strokes(paint);

/** Shares the board until the stream ends. */
async function join(): Promise<void> {
  const left = new AbortController();
  try {
    for await (const { what } of createClient(Board, overSocket).join(strokes.drawn(left.signal))) {
      switch (what.case) {
        case "part":
          strokes.take(what.value);
          break;
        case "clear":
          strokes.cleared();
          pen.clearRect(0, 0, canvas.width, canvas.height);
          break;
        case "people":
          element("people").textContent = what.value.count === 1 ? "only you" : `${what.value.count} people`;
      }
    }
  } finally {
    left.abort();
  }
}

async function stay(): Promise<never> {
  for (;;) {
    await join().catch((e) => console.info(`the stream has ended: ${e}`));
    await new Promise((resolve) => setTimeout(resolve, again));
  }
}

/** Where a pointer is on the board. */
function place(e: PointerEvent): [number, number] {
  const box = canvas.getBoundingClientRect();
  const within = (v: number, max: number) => Math.round(Math.min(Math.max(v, 0), 1) * max);
  return [
    within((e.clientX - box.left) / box.width, canvas.width),
    within((e.clientY - box.top) / box.height, canvas.height),
  ];
}

let color = 0;
canvas.addEventListener("pointerdown", (e) => {
  canvas.setPointerCapture(e.pointerId);
  strokes.begin(color, ...place(e));
});
canvas.addEventListener("pointermove", (e) => {
  if (!canvas.hasPointerCapture(e.pointerId)) return;
  const all = e.getCoalescedEvents();
  for (const c of all.length > 0 ? all : [e]) strokes.extend(...place(c));
});

for (const [i, c] of colors.entries()) {
  const choice = document.createElement("input");
  Object.assign(choice, { type: "radio", name: "color", checked: i === color });
  choice.ariaLabel = c;
  choice.style.setProperty("--color", c);
  choice.addEventListener("change", () => {
    color = i;
  });
  element("palette").append(choice);
}

element("clear").addEventListener("click", () => strokes.clear());

const measure = element<HTMLButtonElement>("measure");
measure.addEventListener("click", async () => {
  const rates = element("rates");
  measure.disabled = true;
  rates.textContent = "measuring…";
  try {
    const socket = await roundTrips(overSocket);
    const http = await roundTrips(overHTTP);
    const perSecond = (n: number) => Math.round(n).toLocaleString("en");
    rates.textContent = `calls a second: ${perSecond(socket)} over the WebSocket, ${perSecond(http)} over HTTP: ${(socket / http).toFixed(1)} times`;
  } catch (e) {
    rates.textContent = String(e);
  }
  measure.disabled = false;
});

function show(state: string): void {
  element("state").textContent = state;
  element("state").dataset.state = state;
}

show(overSocket.state);
overSocket.onStateChange(show);
void stay();

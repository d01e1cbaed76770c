import { BinaryReader, BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { empty } from "./bytes.ts";

/** A detail of a status: the type's full name, and the message. */
export interface Detail {
  type: string;
  value: Uint8Array;
}

const prefix = "type.googleapis.com/";

// Fields of google.rpc.Status and google.protobuf.Any.
const Status = { code: 1, message: 2, details: 3 } as const;
const Any = { typeUrl: 1, value: 2 } as const;

/**
 * Decodes a google.rpc.Status. It throws if b is malformed. It calls the function takes before each
 * detail, and throws if takes returns false, which means that there is no room for the detail.
 */
export function readStatus(b: Uint8Array, takes: () => boolean): { code: number; details: Detail[] } {
  const status = { code: 0, details: [] as Detail[] };
  for (const r = new BinaryReader(b); r.pos < r.len; ) {
    const [field, type] = r.tag();
    if (field === Status.code && type === WireType.Varint) status.code = r.int32();
    else if (field === Status.details && type === WireType.LengthDelimited) {
      if (!takes()) throw new RangeError("too many details");
      status.details.push(readAny(r.bytes()));
    } else r.skip(type, field);
  }
  return status;
}

function readAny(b: Uint8Array): Detail {
  const d: Detail = { type: "", value: empty };
  for (const r = new BinaryReader(b); r.pos < r.len; ) {
    const [field, type] = r.tag();
    if (field === Any.typeUrl && type === WireType.LengthDelimited) {
      const url = r.string();
      d.type = url.slice(url.lastIndexOf("/") + 1);
    } else if (field === Any.value && type === WireType.LengthDelimited) d.value = r.bytes();
    else r.skip(type, field);
  }
  return d;
}

/** Encodes a google.rpc.Status. Without details the result is empty. */
export function writeStatus(code: number, message: string, details: Detail[]): Uint8Array {
  const w = new BinaryWriter();
  if (details.length === 0) return w.finish();
  w.tag(Status.code, WireType.Varint).int32(code);
  w.tag(Status.message, WireType.LengthDelimited).string(message);
  for (const d of details) {
    w.tag(Status.details, WireType.LengthDelimited).fork();
    w.tag(Any.typeUrl, WireType.LengthDelimited).string(prefix + d.type);
    w.tag(Any.value, WireType.LengthDelimited).bytes(d.value);
    w.join();
  }
  return w.finish();
}

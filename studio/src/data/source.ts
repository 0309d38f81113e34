// Where a run comes from. Components see nothing else of the host that they live in: a server's page, one offline file, or a
// notebook's widget.
import type { Recording, RecordRequest, TrainingCurves } from "../api/types";
import type { RecordingEvent } from "./recording-events";

/** A further part of a run that is read on demand, such as one head's attention: a view's route, and what it asks. */
export interface SliceRequest {
  readonly view:
    | "attention"
    | "attention-maps"
    | "experts"
    | "inside"
    | "learning"
    | "lens"
    | "look"
    | "model"
    | "parameters"
    | "patch"
    | "tokens"
    | "trace"
    | "tree"
    | `task/${string}`;
  readonly body: Readonly<Record<string, unknown>>;
}

/** The same for the same part. */
export function sliceKey({ view, body }: SliceRequest): string {
  return `${view} ${JSON.stringify(body)}`;
}

export interface Source {
  /** The run to open with. */
  run(): Promise<Recording>;
  /** A part of a run that its recording does not hold. */
  slice(request: SliceRequest, signal?: AbortSignal): Promise<unknown>;
  /** A new run while it is being made; without its last event it was cut off, which is an error. Hosts without a model have none. */
  stream?(request: RecordRequest, signal: AbortSignal): AsyncIterable<RecordingEvent>;
  /** The models that `stream` can be asked for. */
  models?(): Promise<string[]>;
  /** The training that the server follows, as far as it has come; hosts without a server have none. */
  training?(signal: AbortSignal): Promise<TrainingCurves>;
  /** The page that a run is saved in; hosts that cannot save have none. */
  pageTemplate?(): Promise<string>;
}

/** What went wrong, in a sentence for people. */
export class SourceError extends Error {
  constructor(
    message: string,
    readonly kind: "unreachable" | "cut off" | "refused" | "key needed" | "not recorded",
  ) {
    super(message);
  }
}

const SCHEMA = "glassformer.recording/1";

/** JSON of unknown origin as a recording, or an error that says what it is instead. */
export function asRecording(data: unknown): Recording {
  const schema = typeof data === "object" && data !== null && "schema" in data ? data.schema : undefined;
  if (schema !== SCHEMA) {
    const name = typeof schema === "string" ? `"${schema}"` : "no recording";
    throw new SourceError(`This is ${name}; the studio opens "${SCHEMA}".`, "refused");
  }
  return data as Recording;
}

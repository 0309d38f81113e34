// Where a run comes from. Components see nothing else of the host that they live in: a server's page, one offline file, or a
// notebook's widget.
import type { PageData, RecordedLens, RecordedStep, Recording, RecordRequest, TrainingCurves, ViewList } from "../api/types";
import { misfit, optional, type Shape } from "./shape";

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
    | "steering"
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

/** What came of a view that was asked for. */
export interface ExperimentResult {
  readonly name: string; // of its view
  readonly title: string;
  readonly description: string;
  readonly body: Readonly<Record<string, unknown>>; // what was asked
  readonly page: PageData;
}

/** A part of a recording that is being made. */
export type RecordingEvent =
  | { readonly kind: "start"; readonly run: Recording }
  | { readonly kind: "step"; readonly step: RecordedStep; readonly text: string }
  | { readonly kind: "lens"; readonly first: number; readonly lens: readonly RecordedLens[] }
  | { readonly kind: "end"; readonly text: string; readonly tokens_per_second: number; readonly finish: string | null };

export interface Source {
  /** The run to open with. */
  run(): Promise<Recording>;
  /** A part of a run that its recording does not hold. */
  slice(request: SliceRequest, signal?: AbortSignal): Promise<unknown>;
  /** A new run while it is being made; without its last event it was cut off, which is an error. Hosts without a model have none. */
  stream?(request: RecordRequest, signal: AbortSignal): AsyncIterable<RecordingEvent>;
  /** The models that `stream` can be asked for. */
  models?(): Promise<string[]>;
  /** The views that `page` can be asked for. */
  views?(): Promise<ViewList>;
  /** Any view by its name, as a page. */
  page?(name: string, body: Readonly<Record<string, unknown>>, signal: AbortSignal): Promise<unknown>;
  /** Pages that were asked for before, and came with the run. */
  readonly results?: readonly ExperimentResult[];
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
const NUMBERS: Shape = [optional("number")]; // null stands for what JSON has no number for
const TOKEN: Shape = { id: "number", text: "string", special: "boolean" };
/** What the page cannot be drawn without. */
const RECORDING: Shape = {
  model: "string",
  executor: "string",
  settings: {},
  prompt: "string",
  prompt_tokens: [TOKEN],
  text: "string",
  layers: ["string"],
  stages: [{ name: "string", shape: ["number"] }],
  steps: [
    {
      token: TOKEN,
      surprisal: optional("number"),
      entropy: optional("number"),
      rank: optional("number"),
      rules: ["string"],
      counts: ["number"],
      candidates: { ids: ["number"], texts: ["string"], scores: NUMBERS, paths: [NUMBERS] },
      tail: optional({ top: optional("number"), counts: ["number"] }),
      lens: optional({ texts: ["string"], probabilities: NUMBERS }),
    },
  ],
};

/** JSON of unknown origin as a recording, or an error that says what it is instead. */
export function asRecording(data: unknown): Recording {
  const schema = typeof data === "object" && data !== null && "schema" in data ? data.schema : undefined;
  if (schema !== SCHEMA) {
    const name = typeof schema === "string" ? `"${schema}"` : "no recording";
    throw new SourceError(`This is ${name}; the studio opens "${SCHEMA}".`, "refused");
  }
  const place = misfit(data, RECORDING);
  if (place !== null) throw new SourceError(`it is damaged: ${place} is missing or of another kind. Save the run once more.`, "refused");
  return data as Recording;
}

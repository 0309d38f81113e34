// What views show of a run besides its recording: every head's attention, and what the layers predict within the prompt. A server
// reads it on demand; a saved page and a notebook's widget hold it.
import type { AttentionMaps, Lens, Recording } from "../api/types";
import { hasEncoder, readingFields } from "./reading";
import type { SliceRequest, Source } from "./source";
import type { Steer } from "./steering";

/** By name: "lens", "attention-maps/" with the kind of attention, and "experiments", a list of results. */
export type Slices = Readonly<Record<string, unknown>>;

const PROMPT_TOKENS = 512; // of a prompt whose lens is saved, at most; as in glassformer/see/recording.py

/** Read all of them, for a page that is to be saved; none where the model that wrote the run is not there. */
export async function readRunSlices(source: Source, run: Recording, steer: readonly Steer[]): Promise<Slices> {
  const fields = readingFields(run, null, null, steer);
  const maps = (kind: string) => source.slice({ view: "attention-maps", body: { ...fields, kind, first: 0 } }) as Promise<AttentionMaps>;
  const slices: Record<string, unknown> = {};
  try {
    const own = await maps("self");
    for (const kind of own.kinds) slices[`attention-maps/${kind}`] = kind === "self" ? own : await maps(kind);
    const length = run.prompt_tokens.length;
    const positions = Array.from({ length: length - 1 }, (_, position) => position);
    if (!hasEncoder(run) && length > 1 && length <= PROMPT_TOKENS) slices["lens"] = await source.slice({ view: "lens", body: { ...fields, positions } });
  } catch {
    return slices;
  }
  return slices;
}

/** The part that a view asks for, if it is held. */
export function heldSlice(slices: Slices, run: Recording, { view, body }: SliceRequest): unknown {
  const own = readingFields(run, null, null);
  if (String(body["prompt"]) !== String(own["prompt"]) || String(body["answer_ids"]) !== String(own["answer_ids"])) return undefined;
  if (view === "attention-maps") {
    const maps = slices[`attention-maps/${String(body["kind"])}`] as AttentionMaps | undefined;
    return maps?.first === body["first"] ? maps : undefined;
  }
  return view === "lens" ? lensAt(slices["lens"] as Lens | undefined, body["positions"] as readonly number[]) : undefined;
}

function lensAt(lens: Lens | undefined, positions: readonly number[]): Lens | undefined {
  if (!lens) return undefined;
  const columns = positions.map((position) => lens.positions.indexOf(position));
  if (columns.includes(-1)) return undefined;
  const pick = <T>(row: readonly T[]): T[] => columns.flatMap((column) => row[column] ?? []);
  return { ...lens, positions: pick(lens.positions), tokens: pick(lens.tokens), predictions: lens.predictions.map((row) => pick(row)) };
}

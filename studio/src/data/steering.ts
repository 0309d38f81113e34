// Steering vectors that the server has for a model: each is added inside it, so many times, while it writes.
import { misfit, type Shape } from "./shape";
import type { Source } from "./source";

export interface SteeringVector {
  readonly name: string;
  readonly sites: readonly string[]; // where it is added
}

/** A vector by its name, and how many times it is added. */
export interface Steer {
  readonly name: string;
  readonly strength: number;
}

const VECTORS: Shape = { vectors: [{ name: "string", sites: ["string"] }] };

/** Those that fit a model; none where the server has none. */
export async function steeringVectors(source: Source, model: string): Promise<readonly SteeringVector[]> {
  if (!source.stream) return [];
  try {
    const data = await source.slice({ view: "steering", body: { model } });
    if (misfit(data, VECTORS) !== null) return [];
    const { vectors } = data as { vectors: readonly (SteeringVector & { readonly problem?: string | null })[] };
    return vectors.filter(({ problem }) => !problem);
  } catch {
    return []; // a server without them
  }
}

/** The part of a request that steers. */
export function steerFields(steer: readonly Steer[] | undefined): { readonly steer?: readonly Steer[] } {
  return steer?.length ? { steer } : {};
}

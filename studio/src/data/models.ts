// The models of the server: which one a view is about, and what it is.
import type { DescribedModel } from "../api/types";
import type { Source } from "./source";

const descriptions = new WeakMap<Source, Map<string | null, Promise<DescribedModel>>>();

/** The model that is chosen on the page; null: the server's first. */
export function currentModel(studio: { readonly model: string | null; readonly models: readonly string[] }): string | null {
  return studio.model ?? studio.models[0] ?? null;
}

/** What a model is; asked for once. */
export function describeModel(source: Source, model: string | null): Promise<DescribedModel> {
  const known = descriptions.get(source) ?? new Map<string | null, Promise<DescribedModel>>();
  descriptions.set(source, known);
  let description = known.get(model);
  if (!description) {
    description = source.slice({ view: "model", body: { model } }) as Promise<DescribedModel>;
    description.catch(() => known.delete(model)); // it may work the next time
    known.set(model, description);
  }
  return description;
}

// The two answers that are compared. They outlive the view, so that one can look elsewhere and come back.
import type { Recording } from "../../api/types";
import { Remote } from "../../data/remote.svelte";
import { SourceError } from "../../data/source";
import { runId } from "../../data/run-id";
import type { Studio } from "../../data/studio.svelte";
import { recordRequest, sameAs, type Variant } from "./variant";

export class Comparison {
  variant = $state.raw<Variant | null>(null); // null: nothing was changed yet
  second = new Remote<Recording>();
  /** What B was written with. */
  written = $state.raw<Variant | null>(null);
  private abort: AbortController | null = null;

  constructor(
    private readonly studio: Studio,
    readonly first: Recording,
  ) {}

  variantFor(model: string): Variant {
    return this.variant ?? sameAs(this.first, model, this.studio.selection);
  }

  async write(variant: Variant): Promise<void> {
    const { source } = this.studio;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    await this.second.read(async () => {
      if (!source.generate) throw new SourceError("This page has no model, so it cannot write a second answer.", "not recorded");
      const run = await source.generate(recordRequest(this.first, variant), abort.signal);
      this.written = variant;
      return run;
    });
  }

  stop(): void {
    this.abort?.abort();
    this.second.clear();
  }
}

const comparisons = new WeakMap<Studio, Map<string, Comparison>>();

/** The comparison that a run is the first answer of; the same for a run whose lens came later. */
export function comparisonOf(studio: Studio, run: Recording): Comparison {
  const ofStudio = comparisons.get(studio) ?? new Map<string, Comparison>();
  comparisons.set(studio, ofStudio);
  const id = runId(run);
  const comparison = ofStudio.get(id) ?? new Comparison(studio, run);
  ofStudio.set(id, comparison);
  return comparison;
}

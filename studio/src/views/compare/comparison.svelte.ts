// The two answers that are compared. They outlive the view, so that one can look elsewhere and come back.
import type { Recording } from "../../api/types";
import { Loader } from "../../data/loader.svelte";
import { follow } from "../../data/recording-events";
import { SourceError } from "../../data/source";
import { runId } from "../../data/run-id";
import type { Studio } from "../../data/studio.svelte";
import { recordRequest, sameAs, type Variant } from "./variant";

export class Comparison {
  variant = $state.raw<Variant | null>(null); // null: nothing was changed yet
  /** B, as far as it is written. */
  second = $state.raw<Recording | null>(null);
  /** What B was written with. */
  written = $state.raw<Variant | null>(null);
  readonly loader = new Loader<Recording | null>();

  constructor(
    private readonly studio: Studio,
    readonly first: Recording,
  ) {}

  get writing(): boolean {
    return this.loader.state.kind === "reading";
  }

  variantFor(model: string): Variant {
    return this.variant ?? sameAs(this.first, model, this.studio.selection);
  }

  /** Write B; what there is of it when it is stopped or fails stays. */
  async write(variant: Variant): Promise<void> {
    await this.loader.load(async (signal) => {
      const { stream } = this.studio.source;
      if (!stream) throw new SourceError("This page has no model, so it cannot write a second answer.", "not recorded");
      this.second = null;
      this.written = variant;
      return follow(stream.call(this.studio.source, recordRequest(this.first, variant), signal), (run) => {
        if (!signal.aborted) this.second = run;
      });
    });
  }

  stop(): void {
    this.loader.cancel();
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

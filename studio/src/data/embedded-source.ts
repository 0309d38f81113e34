// A run that came with its page, or was handed over by a notebook: everything is there, and there is no model.
import type { Recording } from "../api/types";
import { asResults } from "./experiments.svelte";
import { heldSlice, type Slices } from "./run-slices";
import { type ExperimentResult, type SliceRequest, type Source, SourceError } from "./source";

export class EmbeddedSource implements Source {
  readonly results: readonly ExperimentResult[];

  constructor(
    private readonly recording: Recording,
    private readonly slices: Slices = {},
  ) {
    this.results = asResults(slices["experiments"]);
  }

  async run(): Promise<Recording> {
    return this.recording;
  }

  async slice(request: SliceRequest): Promise<unknown> {
    const slice = heldSlice(this.slices, this.recording, request);
    if (slice === undefined) throw new SourceError("This saved run does not hold that part.", "not recorded");
    return slice;
  }
}

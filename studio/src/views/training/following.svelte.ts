// A training that is followed: asked for again and again while its view is open, until it is over.
import type { TrainingCurves } from "../../api/types";
import type { Source } from "../../data/source";

const EVERY = 2000; // milliseconds from an answer to the next question

export class Following {
  curves = $state.raw<TrainingCurves | null>(null);
  /** Why there are no curves, or no newer ones. */
  problem = $state.raw<string | null>(null);
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly abort = new AbortController();

  constructor(private readonly source: Source) {}

  get over(): boolean {
    return this.curves !== null && this.curves.steps !== null && this.curves.step >= this.curves.steps;
  }

  async start(): Promise<void> {
    const { signal } = this.abort;
    try {
      const curves = await this.source.training?.(signal);
      if (signal.aborted) return;
      if (curves && !same(curves, this.curves)) this.curves = curves;
      this.problem = null;
    } catch (error) {
      if (signal.aborted) return;
      this.problem = error instanceof Error ? error.message : String(error);
    }
    if (!this.over) this.timer = setTimeout(() => void this.start(), EVERY);
  }

  stop(): void {
    this.abort.abort();
    clearTimeout(this.timer);
  }
}

/** Whether nothing has come since. */
function same(one: TrainingCurves, other: TrainingCurves | null): boolean {
  const counts = ({ step, held_out, samples, snapshots }: TrainingCurves): string => [step, held_out.length, samples.at(-1)?.step, snapshots.length].join();
  return other !== null && one.name === other.name && counts(one) === counts(other);
}

// A recording while it is being made: the events of POST /glass/record.
import type { RecordedLens, RecordedStep, Recording } from "../api/types";

export type RecordingEvent =
  | { readonly kind: "start"; readonly run: Recording }
  | { readonly kind: "step"; readonly step: RecordedStep; readonly text: string }
  | { readonly kind: "lens"; readonly first: number; readonly lens: readonly RecordedLens[] }
  | { readonly kind: "end"; readonly text: string; readonly tokens_per_second: number; readonly finish: string | null };

/** What has come of a recording since the last time. */
export interface Growth {
  readonly steps: readonly RecordedStep[];
  readonly text: string;
}

/** Server-sent events out of a body that arrives in pieces: each one's name and data. */
export async function* serverSentEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<{ name: string; data: string }> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const field = (name: string): string => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? "";
        yield { name: field("event"), data: field("data") };
      }
    }
  } finally {
    await reader.cancel();
  }
}

/** Steps that come faster than the screen is drawn are handed on together, once in a frame. */
export class FrameBuffer {
  private steps: RecordedStep[] = [];
  private text = "";
  private frame = 0;

  constructor(private readonly flushed: (growth: Growth) => void) {}

  /** `step` null: a text whose step is there already. */
  add(step: RecordedStep | null, text: string): void {
    if (step) this.steps.push(step);
    this.text += text;
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  flush(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.steps.length && !this.text) return;
    const growth = { steps: this.steps, text: this.text };
    this.steps = [];
    this.text = "";
    this.flushed(growth);
  }
}

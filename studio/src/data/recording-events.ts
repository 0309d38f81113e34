// A recording while it is being made: the events of POST /glass/record.
import type { RecordedStep, Recording } from "../api/types";
import { withLens } from "./conversation";
import type { RecordingEvent } from "./source";

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

/** With the steps that have come, counted from the answer's first. */
export function grownBy(run: Recording, growth: Growth): Recording {
  const steps = growth.steps.map((step, number) => ({ ...step, token: { ...step.token, position: run.steps.length + number } }));
  return { ...run, steps: [...run.steps, ...steps], text: run.text + growth.text };
}

/** A recording as it comes: handed on when it begins, then at most once a frame; at last the whole. */
export async function follow(events: AsyncIterable<RecordingEvent>, grown: (run: Recording) => void): Promise<Recording | null> {
  let run: Recording | null = null;
  const show = (next: Recording | null): void => {
    run = next;
    if (next) grown(next);
  };
  const buffer = new FrameBuffer((growth) => show(run && grownBy(run, growth)));
  try {
    for await (const event of events) {
      if (event.kind === "step") {
        buffer.add(event.step, event.text);
        continue;
      }
      buffer.flush();
      if (event.kind === "start") show(event.run);
      else if (event.kind === "lens") show(run && withLens(run, event.first, event.lens));
      else show(run && { ...(run as Recording), tokens_per_second: event.tokens_per_second });
    }
  } finally {
    buffer.flush();
  }
  return run;
}

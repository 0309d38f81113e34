// A run that came with its page, or was handed over by a notebook: everything is there, and there is no model.
import type { Recording } from "../api/types";
import { asRecording, type SliceRequest, type Source, SourceError } from "./source";

/** The element that holds a saved page's data; its type makes it inert. */
export const DATA_ELEMENT = 'script[type="application/json"][data-recording]';

export class EmbeddedSource implements Source {
  constructor(
    private readonly recording: Recording,
    private readonly slices: Readonly<Record<string, unknown>> = {},
  ) {}

  /** The data of a saved page; null where the page holds none. */
  static of(root: ParentNode): EmbeddedSource | null {
    const element = root.querySelector(DATA_ELEMENT);
    return element ? new EmbeddedSource(asRecording(JSON.parse(element.textContent ?? ""))) : null;
  }

  async run(): Promise<Recording> {
    return this.recording;
  }

  async slice(request: SliceRequest): Promise<unknown> {
    const slice = this.slices[sliceKey(request)];
    if (slice === undefined) throw new SourceError("This saved run does not hold that part.", "not recorded");
    return slice;
  }
}

export function sliceKey({ view, body }: SliceRequest): string {
  return `${view} ${JSON.stringify(body)}`;
}

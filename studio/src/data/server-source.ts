// The studio on a server: the shipped run to open with, and the routes under /glass.
import type { Recording, RecordRequest, TrainingCurves, ViewList } from "../api/types";
import { serverSentEvents } from "./recording-events";
import { asRecording, type RecordingEvent, type SliceRequest, type Source, SourceError } from "./source";

const PAGE = "application/vnd.glassformer.page+json";
const LOST = "the connection to the server was lost.";

export class ServerSource implements Source {
  /** Sent with every request once it is known; a server on this machine asks for none. */
  key: string | null = null;

  constructor(
    private readonly shippedRun: string, // addresses
    private readonly savedPageTemplate: string | null = null,
  ) {}

  async run(): Promise<Recording> {
    return asRecording(await this.request(this.shippedRun, {}));
  }

  async slice({ view, body }: SliceRequest, signal?: AbortSignal): Promise<unknown> {
    return this.post(`./glass/${view}`, body, signal);
  }

  async *stream(request: RecordRequest, signal: AbortSignal): AsyncGenerator<RecordingEvent> {
    const response = await this.respond("./glass/record", posted({ ...request, stream: true }, signal));
    let kind = "";
    try {
      for await (const { name, data } of serverSentEvents(response.body as ReadableStream<Uint8Array>)) {
        kind = name;
        const content = JSON.parse(data) as never;
        if (name === "error") throw new SourceError((content as { error: { message: string } }).error.message, "cut off");
        yield name === "start" ? { kind: name, run: asRecording(content) } : ({ kind: name, ...(content as object) } as RecordingEvent);
      }
    } catch (error) {
      if (signal.aborted || error instanceof SourceError) throw error;
      throw new SourceError(LOST, "cut off"); // the connection broke
    }
    if (kind !== "end") throw new SourceError(LOST, "cut off");
  }

  async models(): Promise<string[]> {
    const { data } = (await this.request("./v1/models", {})) as { data: { id: string }[] };
    return data.map((model) => model.id);
  }

  async views(): Promise<ViewList> {
    const { views } = (await this.request("./glass/views", {})) as { views: ViewList };
    return views;
  }

  async page(name: string, body: Readonly<Record<string, unknown>>, signal: AbortSignal): Promise<unknown> {
    const { headers, ...options } = posted(body, signal);
    return this.request(`./glass/${name}`, { ...options, headers: { ...headers, Accept: PAGE } });
  }

  async training(signal: AbortSignal): Promise<TrainingCurves> {
    return (await this.request("./glass/training", { signal })) as TrainingCurves;
  }

  async pageTemplate(): Promise<string> {
    if (this.savedPageTemplate === null) throw new SourceError("There is no template before the studio is built: make studio", "refused");
    return (await this.respond(this.savedPageTemplate, {})).text();
  }

  private post(path: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
    return this.request(path, posted(body, signal));
  }

  private async request(path: string, options: RequestInit): Promise<unknown> {
    return (await this.respond(path, options)).json();
  }

  /** The server's answer, if it is none of an error. */
  private async respond(path: string, options: RequestInit): Promise<Response> {
    const headers = new Headers(options.headers);
    if (this.key !== null) headers.set("Authorization", `Bearer ${this.key}`);
    let response: Response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new SourceError("The server cannot be reached. Start it again with: glass studio", "unreachable");
    }
    if (response.ok) return response;
    const message = await errorMessage(response);
    throw new SourceError(message, response.status === 401 ? "key needed" : "refused");
  }
}

function posted(body: unknown, signal?: AbortSignal): RequestInit & { readonly headers: Readonly<Record<string, string>> } {
  return {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    ...(signal ? { signal } : {}),
  };
}

async function errorMessage(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error?: string | { message?: string } };
    const message = typeof error === "string" ? error : error?.message;
    if (message) return message;
  } catch {
    // not JSON: the status has to do
  }
  return `The server answered with status ${response.status}.`;
}

// Views that the page knows nothing of but what the server says: which there are, and what came of those that were asked for.
import type { PageData, ViewDescription } from "../api/types";
import { misfit, type Shape } from "./shape";
import { type ExperimentResult, type Source, SourceError } from "./source";

const PAGE_SCHEMA = "glassformer.page/1";
const PAGE: Shape = { title: "string", python: "string", parts: [{ kind: "string" }] };
const RESULTS: Shape = [{ name: "string", title: "string", description: "string", body: {}, page: PAGE }];

/** What a result says of its view. */
type Subject = Pick<ExperimentResult, "name" | "title" | "description">;

export class Experiments {
  views = $state.raw<readonly ViewDescription[]>([]);
  /** The last of each view, in the order of their making. */
  results = $state.raw<readonly ExperimentResult[]>([]);
  private loading: Promise<void> | null = null;

  constructor(private readonly source: Source) {
    this.results = source.results ?? [];
  }

  /** Read which views there are, once; what could not be read is asked for again the next time. */
  load(): Promise<void> {
    this.loading ??= this.read().catch((error: unknown) => {
      this.loading = null;
      throw error;
    });
    return this.loading;
  }

  result(name: string): ExperimentResult | null {
    return this.results.find((result) => result.name === name) ?? null;
  }

  /** Ask the server for a view as a page, and keep what came of it. */
  async ask({ name, title, description }: Subject, body: Readonly<Record<string, unknown>>, signal: AbortSignal): Promise<PageData> {
    const page = asPage(await this.source.page?.(name, body, signal));
    this.results = [...this.results.filter((result) => result.name !== name), { name, title, description, body, page }];
    return page;
  }

  private async read(): Promise<void> {
    this.views = (await this.source.views?.()) ?? [];
  }
}

/** A server's answer as a page, or an error that says what it is instead. */
export function asPage(data: unknown): PageData {
  if (misfit(data, PAGE) !== null || (data as PageData).schema !== PAGE_SCHEMA) {
    throw new SourceError("The server gave no page of this view that this studio can show. Load the studio again: it may be of another version.", "refused");
  }
  return data as PageData;
}

/** Results that a saved page holds; none where they are damaged, or of another version. */
export function asResults(data: unknown): readonly ExperimentResult[] {
  if (data === undefined || misfit(data, RESULTS) !== null) return [];
  return (data as readonly ExperimentResult[]).filter(({ page }) => page.schema === PAGE_SCHEMA);
}

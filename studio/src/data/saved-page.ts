// A run as one HTML file, and back. The template is a build of this app in one file; glassformer/studio/saved_page.py fills it in the
// same way, so that a run gives the same bytes here and there.
import type { Recording } from "../api/types";
import { asRecording, SourceError } from "./source";

/** The element that holds a saved page's data; its type makes it inert. */
export const DATA_ELEMENT = 'script[type="application/json"][data-recording]';

const PLACEHOLDER = "__RECORDING__";

export function savedPage(template: string, run: Recording): string {
  const start = template.indexOf(PLACEHOLDER);
  return template.slice(0, start) + inertJson(run) + template.slice(start + PLACEHOLDER.length);
}

/** JSON with sorted names, in which nothing can end the element that it stands in. */
function inertJson(value: unknown): string {
  return JSON.stringify(value, (_, item: unknown) => (isObject(item) ? sorted(item) : item)).replaceAll("<", "\\u003c");
}

function isObject(item: unknown): item is Record<string, unknown> {
  return typeof item === "object" && item !== null && !Array.isArray(item);
}

function sorted(object: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(object).sort(([first], [second]) => (first < second ? -1 : 1)));
}

/** The run in a saved file: JSON, or a page with its data. Nothing in a page is run. */
export function readSavedRun(text: string): Recording {
  if (!/^\s*</.test(text)) return asRecording(parsedJson(text));
  const data = new DOMParser().parseFromString(text, "text/html").querySelector(DATA_ELEMENT);
  if (!data) throw new SourceError("it is a page without a recording. Save one with run.recording.save(\"run.html\").", "refused");
  return asRecording(parsedJson(data.textContent ?? ""));
}

function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new SourceError("it is not JSON.", "refused");
  }
}

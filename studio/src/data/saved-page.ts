// A run as one HTML file, and back. The template is a build of this app in one file; glassformer/studio/__init__.py fills it in the
// same way, so that a run gives the same bytes here and there.
import type { Recording } from "../api/types";
import type { Slices } from "./run-slices";
import { asRecording, SourceError } from "./source";

export const SLICES_ELEMENT = 'script[type="application/json"][data-slices]';

/** The element that holds a saved page's data; its type makes it inert. */
export const DATA_ELEMENT = 'script[type="application/json"][data-recording]';

/** `selection`: what the page opens with, as the part of an address behind #; `slices`: what its views would ask a model for. */
export function savedPage(template: string, run: Recording, selection = "", slices: Slices = {}): string {
  const contents = { __SELECTION__: selection.replaceAll("&", "&amp;"), __RECORDING__: inertJson(run), __SLICES__: inertJson(slices) };
  return Object.entries(contents).reduceRight((page, [placeholder, content]) => filled(page, placeholder, content), template);
}

function filled(template: string, placeholder: string, content: string): string {
  const start = template.indexOf(placeholder);
  return template.slice(0, start) + content + template.slice(start + placeholder.length);
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

/** What a saved page holds besides its run. */
export function readSlices(text: string): Slices {
  const slices = parsedJson(text || "{}");
  return isObject(slices) ? slices : {};
}

function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new SourceError("it is not JSON.", "refused");
  }
}

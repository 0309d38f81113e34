// A form from what the server says of a request's fields: what stands in each of them at first, and what is sent.
import type { Recording, ViewField } from "../../api/types";
import { hasEncoder } from "../../data/reading";
import type { Selection } from "../../data/selection";
import { EXAMPLE } from "../patch/pair";

/** What stands in a form: a text for each field, and for a box whether it is checked. */
export type Entries = Readonly<Record<string, string | boolean>>;
export type RequestBody = Readonly<Record<string, unknown>>;

/** Fields that the page answers by itself: the model is chosen above. */
export function formFields(fields: readonly ViewField[]): ViewField[] {
  return fields.filter(({ name }) => name !== "model");
}

/** What the page suggests for fields by their names: the text before the selected token, as the model has read it. */
export function suggestions(run: Recording, { token, layer, head }: Selection): RequestBody {
  const answer = run.steps
    .slice(0, token ?? run.steps.length)
    .map((step) => step.token.text)
    .join("");
  const read = hasEncoder(run) ? { prompt: run.prompt, target: answer } : { prompt: run.prompt + answer };
  return { ...read, text: read.prompt, raw: true, first: EXAMPLE.clean, second: EXAMPLE.corrupted, layer, head };
}

/** `values`: of a link, or what the page suggests; what is not in them has its example or its default. */
export function entriesOf(fields: readonly ViewField[], values: RequestBody): Entries {
  return Object.fromEntries(
    fields.map((field) => {
      const value = values[field.name] ?? field.example ?? field.default ?? null;
      return [field.name, field.kind === "boolean" ? value === true : toEntry(field, value)];
    }),
  );
}

function toEntry({ kind, items }: ViewField, value: unknown): string {
  if (value === null) return "";
  if (kind === "list" && Array.isArray(value)) return value.map(String).join(items === "text" ? "\n" : ", ");
  if (kind === "json" || typeof value === "object") return isEmpty(value) ? "" : JSON.stringify(value);
  return String(value);
}

function isEmpty(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

/** What is sent: fields that are empty or as they are by default are left out. An error says which field makes no sense. */
export function bodyOf(fields: readonly ViewField[], entries: Entries): RequestBody {
  const body: Record<string, unknown> = {};
  for (const field of fields) {
    const value = fromEntry(field, entries[field.name] ?? "");
    if (value !== null && value !== field.default) body[field.name] = value;
  }
  return body;
}

function fromEntry(field: ViewField, entry: string | boolean): unknown {
  if (typeof entry === "boolean") return entry;
  if (entry.trim() === "" && !(field.required && entry)) return null;
  switch (field.kind) {
    case "list":
      return entry
        .split(field.items === "text" ? "\n" : ",")
        .filter((item) => item.trim())
        .map((item) => scalar(field.name, field.items ?? "text", field.items === "text" ? item : item.trim()));
    case "json":
      return parsed(field.name, entry);
    case "choice":
      return field.choices.find((choice) => String(choice) === entry) ?? null;
    default:
      return scalar(field.name, field.kind, entry);
  }
}

/** A token's text is written as the page writes tokens: · is a space. */
function scalar(name: string, kind: string, entry: string): unknown {
  const number = entry.trim() === "" ? NaN : Number(entry);
  if (kind === "text") return entry;
  if (kind === "boolean") return entry === "true";
  if (kind.endsWith("or text") && Number.isNaN(number)) return entry.replaceAll("·", " ");
  if (Number.isNaN(number)) throw new TypeError(`“${label(name)}” takes numbers, and “${entry}” is none.`);
  if (kind.startsWith("integer") && !Number.isSafeInteger(number)) throw new TypeError(`“${label(name)}” takes whole numbers, and “${entry}” is none.`);
  return number;
}

function parsed(name: string, entry: string): unknown {
  try {
    return JSON.parse(entry);
  } catch {
    throw new TypeError(`“${label(name)}” takes JSON, such as {"name": 1} or [["a", "b"]].`);
  }
}

/** A request in an address; nothing where it makes no sense. */
export function fromLink(text: string | null): RequestBody | null {
  try {
    const body: unknown = JSON.parse(text ?? "null");
    return typeof body === "object" && body !== null && !Array.isArray(body) ? (body as RequestBody) : null;
  } catch {
    return null;
  }
}

export function label(name: string): string {
  return name.replaceAll("_", " ");
}

// The tasks that the page has a form for: what is asked, with an example, and which options are sent.

export type TaskName =
  | "text-classification"
  | "token-classification"
  | "fill-mask"
  | "question-answering"
  | "text2text-generation"
  | "similarity";

export interface TaskField {
  readonly label: string;
  readonly example: string;
}

export interface TaskForm {
  readonly name: TaskName;
  readonly label: string;
  readonly first: TaskField;
  /** A second text, such as the passage that answers a question. */
  readonly second?: TaskField;
  readonly options: Readonly<Record<string, unknown>>;
  /** The inputs of a request: one for each line. */
  readonly inputs: (first: string, second: string) => unknown[];
}

/** The task that nearly every model can do. */
export const SIMILARITY: TaskForm = {
  name: "similarity",
  label: "Measure similarity",
  first: { label: "A text", example: "How old are you?" },
  second: { label: "Texts that it is compared with, one a line", example: "What is your age?\nHow are you?\nMy phone is broken." },
  options: {},
  inputs: (text, others) => lines(others).map((other) => [text.trim(), other]),
};

export const FORMS: readonly TaskForm[] = [
  {
    name: "text-classification",
    label: "Classify a text",
    first: { label: "Texts, one a line", example: "I love this film!\nThe plot made no sense at all.\nIt was fine, I suppose." },
    options: { top_k: null },
    inputs: lines,
  },
  {
    name: "token-classification",
    label: "Find entities",
    first: { label: "Texts, one a line", example: "Ada Lovelace lived in London.\nMarie Curie was born in Warsaw and worked in Paris." },
    options: { aggregation_strategy: "simple" },
    inputs: lines,
  },
  {
    name: "fill-mask",
    label: "Fill a gap",
    first: { label: "Texts with [MASK] where a word is missing, one a line", example: "Paris is the [MASK] of France.\nShe plays the [MASK]." },
    options: { top_k: 6 },
    inputs: lines,
  },
  {
    name: "question-answering",
    label: "Answer from a passage",
    first: { label: "Questions, one a line", example: "Where does Ada live?\nWhat does she write?" },
    second: { label: "The passage", example: "Ada lives in London, near the river. She writes programs for a machine that nobody has built yet." },
    options: { top_k: 3 },
    inputs: (questions, passage) => lines(questions).map((question) => ({ question, context: passage })),
  },
  {
    name: "text2text-generation",
    label: "Rewrite a text",
    first: { label: "Texts, one a line", example: "translate English to German: How old are you?\nsummarize: The cat sat on the mat, and then it slept all day." },
    options: { max_new_tokens: 48 },
    inputs: lines,
  },
  SIMILARITY,
];

/** The same in Python, for the first input. */
export function pythonCall(form: TaskForm, model: string, input: unknown): string {
  const texts = Array.isArray(input) ? input : [input ?? ""];
  const call = texts.map((text) => JSON.stringify(text)).join(", ");
  return `task = glassformer.pipeline(${JSON.stringify(form.name)}, ${JSON.stringify(model)})\nprint(task(${call}))`;
}

export function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** What the server answers for each input. */
export type TaskOutput = { readonly output: unknown } | { readonly error: string };

// The journey's stages, gathered for a strip: equal blocks become one node, whatever the family.
import type { Recording, Stage } from "../api/types";
import { hasEncoder } from "./reading";

export interface JourneyNode {
  readonly label: string;
  readonly output: Stage; // what comes out of it
  readonly blocks: number; // that it stands for; 0: it is no block
  readonly stages: readonly Stage[];
}

const LABELS: Readonly<Record<string, string>> = {
  text: "text",
  ids: "ids",
  embedding: "vectors",
  final: "norm",
  "next scores": "next scores",
  "best id": "chosen id",
  "next text": "token",
};

export function journeyNodes(stages: readonly Stage[]): JourneyNode[] {
  const groups: Stage[][] = [];
  for (const stage of stages) {
    // where the values are kept, and weights of no site: no values of their own
    if (stage.name === "sites" || stage.python.startsWith("model.get_parameter")) continue;
    const last = groups.at(-1)?.[0];
    if (last && stage.blocks && last.stack === stage.stack && String(last.blocks) === String(stage.blocks)) {
      groups.at(-1)?.push(stage);
    } else {
      groups.push([stage]);
    }
  }
  const twoStacks = stages.some((stage) => stage.stack !== "");
  return groups.map((group) => toNode(group, twoStacks ? "decoder " : ""));
}

function toNode(stages: readonly Stage[], decoder: string): JourneyNode {
  const first = stages[0] as Stage;
  const [from, to] = (first.blocks ?? [0, -1]) as [number, number];
  const blocks = to - from + 1;
  const stack = first.stack === "encoder." ? "encoder " : first.module ? decoder : "";
  const name = first.name.replace(/^encoder\./, "");
  const label = blocks > 0 ? `${blocks} ${stack}${blocks === 1 ? "block" : "blocks"}` : `${stack}${LABELS[name] ?? name.replaceAll("_", " ")}`;
  return { label, output: stages.at(-1) ?? first, blocks, stages };
}

/** The stages with the shapes of one step: each step reads one token more than the one before. */
export function stagesAt(run: Recording, token: number | null): readonly Stage[] {
  const step = token ?? 0;
  const encoder = hasEncoder(run);
  const length = encoder ? step + 1 : run.prompt_tokens.length + step; // of the stack that writes
  const characters = run.steps.slice(0, step).reduce((sum, { token: { text } }) => sum + text.length, run.prompt.length);
  return run.stages.map((stage) => {
    const axes = encoder && (stage.stack === "encoder." || stage.name === "ids") ? [] : lengthAxes(stage);
    if (stage.name === "text") return encoder ? stage : { ...stage, shape: [characters] };
    return axes.length ? { ...stage, shape: stage.shape.map((size, axis) => (axes.includes(axis) ? length : size)) } : stage;
  });
}

/** Which axes of a value count the tokens of the text. */
function lengthAxes(stage: Stage): readonly number[] {
  if (stage.name === "ids" || stage.name === "start") return [1];
  if (!isSite(stage) || /cross\.(key|value)$/.test(stage.name)) return [];
  if (stage.name.endsWith(".pattern")) return stage.name.includes(".cross.") ? [2] : [2, 3];
  return [stage.shape.length === 4 ? 2 : 1];
}

/** Whether a stage is a place inside the model, which can be stepped into by its name. */
export function isSite(stage: Stage): boolean {
  return stage.python.startsWith("at[");
}

/** The level that a node of the strip opens; null where there is nothing inside. */
export function levelOf(node: JourneyNode): string | null {
  if (node.blocks) return `${node.output.stack}blocks.${node.output.blocks?.[0] ?? 0}`;
  return isSite(node.output) ? node.output.name : null;
}

/** The Python lines that the stages' own lines need before them. */
export function setupLines(stages: readonly Stage[]): string[] {
  return stages.filter((stage) => stage.name === "ids" || stage.name === "sites").map((stage) => stage.python);
}

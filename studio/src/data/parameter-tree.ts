// A model's modules and tensors as the rows of a table, of which some are folded.
import type { ModuleNode, Parameter } from "../api/types";

interface Row {
  readonly name: string; // dotted, unique
  readonly label: string; // below its parent
  readonly depth: number;
}

export interface ModuleRow extends Row {
  readonly kind: "module";
  readonly module: ModuleNode;
  readonly open: boolean;
  /** How many numbered modules it is a list of, such as a model's blocks; 0: it is none. */
  readonly blocks: number;
}

export interface TensorRow extends Row {
  readonly kind: "tensor";
  readonly tensor: Parameter;
}

export type ParameterRow = ModuleRow | TensorRow;

/** The rows that are to be seen; `toggled`: the modules that are not as they are at first. */
export function parameterRows(root: ModuleNode, toggled: ReadonlySet<string>): ParameterRow[] {
  const rows: ParameterRow[] = [];
  addRows(root, 0, toggled, rows);
  return rows;
}

function addRows(module: ModuleNode, depth: number, toggled: ReadonlySet<string>, rows: ParameterRow[]): void {
  for (const tensor of module.parameters) rows.push({ kind: "tensor", name: tensor.name, label: lastPart(tensor.name), depth, tensor });
  for (const child of module.modules) {
    const [inner, label] = shortened(child);
    const [only] = inner.parameters;
    if (only && inner.parameters.length === 1 && inner.modules.length === 0) {
      rows.push({ kind: "tensor", name: only.name, label: `${label}.${lastPart(only.name)}`, depth, tensor: only });
      continue;
    }
    const blocks = inner.modules.filter(isNumbered).length;
    const openAtFirst = blocks === 0 && !isNumbered(inner);
    const open = openAtFirst !== toggled.has(inner.name);
    rows.push({ kind: "module", name: inner.name, label, depth, module: inner, open, blocks });
    if (open) addRows(inner, depth + 1, toggled, rows);
  }
}

/** A module that only holds another one shares its row. */
function shortened(module: ModuleNode): [ModuleNode, string] {
  let label = lastPart(module.name);
  let inner = module;
  for (;;) {
    const [only] = inner.modules;
    if (!only || inner.parameters.length || inner.modules.length > 1 || isNumbered(only)) return [inner, label];
    inner = only;
    label = `${label}.${lastPart(only.name)}`;
  }
}

function isNumbered(module: ModuleNode): boolean {
  return /^\d+$/.test(lastPart(module.name));
}

function lastPart(name: string): string {
  return name.slice(name.lastIndexOf(".") + 1);
}

/** The modules around a tensor, from the outermost on. */
export function modulesAround(name: string): string[] {
  const parts = name.split(".");
  return parts.slice(1).map((_, number) => parts.slice(0, number + 1).join("."));
}

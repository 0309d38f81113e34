// Whether JSON of unknown origin has the shape that the page relies on.

/** A list has one shape for all of its items; of an object the names are checked that are here, and what else it has is its own. */
export type Shape = "string" | "number" | "boolean" | Optional | readonly [Shape] | { readonly [name: string]: Shape };

class Optional {
  constructor(readonly shape: Shape) {}
}

/** What may be absent, or null. */
export function optional(shape: Shape): Shape {
  return new Optional(shape);
}

/** Where a value is not of a shape, as in steps.3.token; null: nowhere. */
export function misfit(value: unknown, shape: Shape, path = ""): string | null {
  if (shape instanceof Optional) return value === null || value === undefined ? null : misfit(value, shape.shape, path);
  if (typeof shape === "string") return typeof value === shape ? null : path;
  if (typeof value !== "object" || value === null || Array.isArray(value) !== Array.isArray(shape)) return path;
  const names = Object.keys(Array.isArray(shape) ? value : shape);
  for (const name of names) {
    const inner = (Array.isArray(shape) ? shape[0] : (shape as { readonly [name: string]: Shape })[name]) as Shape;
    const place = misfit((value as Record<string, unknown>)[name], inner, path ? `${path}.${name}` : name);
    if (place !== null) return place;
  }
  return null;
}

// Sizes of tensors as people read them.

const UNITS = [
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "kB"],
] as const;

/** 96.6 MB, as the command writes it. */
export function byteSize(bytes: number): string {
  const unit = UNITS.find(([size]) => bytes >= size);
  return unit ? `${(bytes / unit[0]).toFixed(1)} ${unit[1]}` : `${bytes} B`;
}

/** 1,234,567 as 1.2 M. */
export function shortCount(number: number): string {
  if (number < 10_000) return number.toLocaleString("en-US");
  return Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(number).replace(/(\D)$/, " $1");
}

/** A value of a weight: few digits, whatever its size. */
export function shortNumber(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 0.001 && size < 10_000 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
  return text.replaceAll("-", "−");
}

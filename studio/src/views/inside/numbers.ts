// Numbers with their signs, as they are printed beside colours, and words that come with them.

/** Words in which the server made a token's blanks visible, with the page's own picture of a blank. */
export function withDots(words: string): string {
  return words.replaceAll("␣", "·");
}

/** +0.1234, −0.1234, +3.2e−7 where no digit would be left; a true minus, which is as wide as the plus. */
export function signed(value: number | null, digits = 4): string {
  if (value === null) return "–";
  const fixed = Math.abs(value).toFixed(digits);
  const size = Number(fixed) === 0 && value !== 0 ? Math.abs(value).toExponential(1).replace("-", "−") : fixed;
  return value < 0 ? `−${size}` : `+${size}`;
}

/** The same without a plus. */
export function plain(value: number | null, digits = 4): string {
  return signed(value, digits).replace("+", "");
}

// Light or dark: as the reader chose, else as the surroundings are.
import type { Host } from "./host";

const KEY = "glassformer-theme";

export class Theme {
  private readonly system = matchMedia("(prefers-color-scheme: dark)");
  private choice = $state(storedChoice());
  private systemDark = $state(this.system.matches);

  constructor(private readonly host: Host) {}

  get dark(): boolean {
    return this.choice === null ? (this.host.dark ?? this.systemDark) : this.choice === "dark";
  }

  /** Until what it returns is called. */
  followSystem(): () => void {
    const update = (): void => void (this.systemDark = this.system.matches);
    this.system.addEventListener("change", update);
    return () => this.system.removeEventListener("change", update);
  }

  apply(): void {
    this.host.element.dataset["theme"] = this.dark ? "dark" : "light";
  }

  toggle(): void {
    this.choice = this.dark ? "light" : "dark";
    try {
      localStorage.setItem(KEY, this.choice);
    } catch {
      // the choice holds for this page alone
    }
  }
}

/** What was chosen before; a saved page, or a strict browser, may have no storage. */
function storedChoice(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

// The whole app in one module, style included: a saved page has it as its only script, and a notebook's widget is rendered by it.
import { mount, unmount } from "svelte";
import type { Recording } from "./api/types";
import App from "./App.svelte";
import "./app.css";
import { MemoryAddress, PageAddress } from "./data/address";
import { EmbeddedSource } from "./data/embedded-source";
import type { Host } from "./data/host";
import type { Slices } from "./data/run-slices";
import { DATA_ELEMENT, readSavedRun, readSlices, SLICES_ELEMENT } from "./data/saved-page";
import { asRecording } from "./data/source";

declare const __STUDIO_STYLE__: string; // the build puts all style here

function open(target: HTMLElement, run: Recording, slices: Slices, host: Host): () => void {
  const sheet = new CSSStyleSheet(); // no element, which a page's policy would have to allow
  sheet.replaceSync(__STUDIO_STYLE__);
  const root = target.getRootNode() as Document | ShadowRoot;
  root.adoptedStyleSheets = [...root.adoptedStyleSheets, sheet];
  const app = mount(App, { target, props: { source: new EmbeddedSource(run, slices), host } });
  return () => void unmount(app);
}

/** What anywidget gives: the Python object's traits, and a place in the notebook. */
interface WidgetCell {
  readonly model: { get(trait: "recording" | "slices" | "height"): unknown };
  readonly el: HTMLElement;
}

function render({ model, el }: WidgetCell): () => void {
  const element = document.createElement("div");
  element.style.height = `${Number(model.get("height"))}px`;
  el.append(element);
  const target = document.createElement("div");
  target.className = "app";
  element.attachShadow({ mode: "open" }).append(target);
  const host = { address: new MemoryAddress(), events: element, element, ...surroundings() };
  return open(target, asRecording(model.get("recording")), (model.get("slices") ?? {}) as Slices, host);
}

/** Whether the notebook is dark, where it says so: JupyterLab and VS Code do. */
function surroundings(): Pick<Host, "dark"> {
  const { dataset, classList } = document.body;
  if (dataset["jpThemeLight"] !== undefined) return { dark: dataset["jpThemeLight"] === "false" };
  if (classList.contains("vscode-dark") || classList.contains("vscode-light")) return { dark: classList.contains("vscode-dark") };
  return {};
}

const data = document.querySelector<HTMLElement>(DATA_ELEMENT);
const page = document.querySelector<HTMLElement>("body > .app");
if (data && page) {
  const address = new PageAddress(data.dataset["selection"]);
  const slices = readSlices(document.querySelector(SLICES_ELEMENT)?.textContent ?? "");
  open(page, readSavedRun(data.textContent ?? ""), slices, { address, events: window, element: document.documentElement });
}

export default { render };

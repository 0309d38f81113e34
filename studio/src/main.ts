// The server's page.
import { mount } from "svelte";
import savedPageTemplate from "virtual:saved-page";
import shippedRun from "../shipped-run.json?url";
import App from "./App.svelte";
import "./app.css";
import { PageAddress } from "./data/address";
import { ServerSource } from "./data/server-source";

const target = document.getElementById("app");
if (target) {
  const server = new URL(".", location.href).href;
  const host = { address: new PageAddress(), events: window, element: document.documentElement, server };
  mount(App, { target, props: { source: new ServerSource(shippedRun, savedPageTemplate), host } });
}

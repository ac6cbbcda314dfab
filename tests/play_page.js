// The browser's side of test_play.py: reads a plan (JSON) from stdin, uses the page as a
// reader would, and prints {faults, shown, frames a second, ms of a frame}.
const fs = require("fs");
const path = require("path");
const puppeteer = require("puppeteer-core");
const plan = JSON.parse(fs.readFileSync(0, "utf8"));
const WIDTHS = [390, 860, 1280];
const CLOSELY = [
  [390, "question-2"], [390, "HogWild"], [860, "100-mbit"], [860, "Gossip-SGD"],
  [1280, ""], [1280, "come-and-go"], [1280, "32-workers"],
]; // with axe, light and dark, and a picture
const faults = [];

/** In the page: what does not fit, and canvases on which nothing is drawn. */
function look() {
  const found = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`it scrolls sideways: ${scrollWidth} px`);
  for (const canvas of document.querySelectorAll("canvas")) {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let k = 0; k < data.length; k += 4 * 7) {
      colours.add(data[k] * 65536 + data[k + 1] * 256 + data[k + 2]);
    }
    if (colours.size < 5) found.push(`${canvas.id} is empty`);
  }
  for (const line of document.querySelectorAll("#lines path:not(.dot)")) {
    const { width } = line.getBoundingClientRect();
    if (width < 200 || /undefined|NaN/.test(line.getAttribute("d"))) found.push(`no ${line.id}`);
  }
  for (const picture of document.querySelectorAll("[role=img]")) {
    const label = picture.getAttribute("aria-label");
    if (!label || /undefined|NaN/.test(label)) found.push(`${picture.id}: ${label}`);
  }
  const odd = document.body.innerText.match(/.*(undefined|NaN|\[object).*/);
  if (odd) found.push(`it says "${odd[0]}"`);
  return found;
}

async function main() {
  const args = ["--disable-background-networking", "--allow-file-access-from-files=false"];
  if (plan.root) args.push("--no-sandbox");
  const browser = await puppeteer.launch({ executablePath: plan.browser, args });
  const page = await browser.newPage();
  let where = "";
  page.on("console", (said) => {
    if (["error", "warn"].includes(said.type())) faults.push(`${where}: console: ${said.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`${where}: ${error.message}`));
  page.on("request", (request) => {
    if (!/^(file|data):/.test(request.url())) faults.push(`it asks for ${request.url()}`);
  });
  const show = async (hash, width, scheme = "light") => {
    where = `#${hash} at ${width} px, ${scheme}`;
    await page.setViewport({ width, height: 900 });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.goto("about:blank");
    await page.goto(`${plan.url}#${hash}`);
    await page.evaluate(() => new Promise(requestAnimationFrame));
  };
  const wrong = (lines) => faults.push(...lines.map((line) => `${where}: ${line}`));

  // Everything is drawn, and fits.
  await show("", 1280);
  const { schemes, presets, questions } = await page.evaluate(() => ({
    schemes: Object.keys(words.schemes),
    presets: words.presets.map((one) => one.id),
    questions: words.questions.map((one) => one.id),
  }));
  let shown = 0;
  for (const hash of [...schemes, ...presets, ...questions, "workers=32&problem=1"]) {
    await show(hash, WIDTHS[shown++ % 3]);
    if (hash.startsWith("question")) {
      await page.evaluate(() => {
        const time = document.getElementById("time");
        time.value = 1;
        time.dispatchEvent(new Event("input", { bubbles: true }));
      });
    }
    wrong(await page.evaluate(look));
  }
  const axe = fs.readFileSync(plan.axe, "utf8");
  for (const scheme of ["light", "dark"]) {
    for (const [width, hash] of CLOSELY) {
      await show(hash, width, scheme);
      wrong(await page.evaluate(look).then((lines) => lines.filter((line) => !/empty/.test(line))));
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => axe.run());
      const html = (one) => one.nodes.map((node) => node.html).slice(0, 3).join(" ");
      wrong(violations.map((one) => `axe: ${one.id}: ${html(one)}`));
      if (plan.pictures) {
        fs.mkdirSync(plan.pictures, { recursive: true });
        const file = path.join(plan.pictures, `${hash || "first"}-${width}-${scheme}.png`);
        await page.screenshot({ path: file, fullPage: true });
      }
    }
  }

  // By keyboard alone: a preset, a scheme, slower workers, an answer, and play.
  await show("", 1280);
  const press = async (wanted, most = 80) => {
    for (let k = 0; k < most; k++) {
      await page.keyboard.press("Tab");
      if (await page.evaluate((id) => document.activeElement.matches(id), wanted)) return;
    }
    wrong([`Tab does not come to ${wanted}`]);
  };
  const settled = () => new Promise((done) => setTimeout(done, 500));
  const state = () => page.evaluate(() => location.hash);
  const has = async (part, otherwise) => {
    const hash = await state();
    if (!hash.includes(part)) wrong([`${otherwise}: ${hash}`]);
  };
  await press("#presets a:nth-child(2)");
  await page.keyboard.press("Enter");
  if (await state() !== "#two-sites") wrong([`Enter on a preset leads to ${await state()}`]);
  await press("#a-scheme");
  await page.keyboard.type("AGN");
  await settled();
  await has("a=AGN", "AGN cannot be chosen");
  const focus = await page.evaluate(() => document.activeElement.id);
  if (focus !== "a-scheme") wrong([`the focus goes to "${focus}"`]);
  await press("[name='a.window']");
  await page.keyboard.press("ArrowUp");
  await settled();
  await has("a.window=6", "the window stays");
  await press("[name=workers]");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await settled();
  await has("workers=6", "the slider of workers stays");
  await press("summary");
  await page.keyboard.press("Enter");
  await press("[name='slow.1']");
  await page.keyboard.press("ArrowRight");
  await settled();
  await has("slow=1,1.5,1", "worker 1 is not slower");
  await show("question-1", 1280);
  await press("[name=answer]");
  await page.keyboard.press("Space");
  await press("#play");
  await page.keyboard.press("Enter");
  const verdict = "document.getElementById('verdict').innerText.startsWith('Right')";
  await page.waitForFunction(verdict, { timeout: 40000 }).catch(() => wrong(["no verdict after the play"]));

  // Dragging a worker's row slows the worker down.
  await show("a=HogWild", 1280);
  const box = await page.$eval("#lanes-a", (canvas) => {
    canvas.scrollIntoView();
    const { x, y } = canvas.getBoundingClientRect();
    return { x, y };
  });
  await page.mouse.move(box.x + 100, box.y + 4 + 2 * 32 + 10); // worker 1
  await page.mouse.down();
  await page.mouse.move(box.x + 160, box.y + 4 + 2 * 32 + 10, { steps: 4 });
  await page.mouse.up();
  await settled();
  await has("slow=1,3,1,1", "a drag leads to");

  // Frames while eight workers play.
  await show("workers=8&seconds=60", 1280);
  const { frames, frame } = await page.evaluate(() => new Promise((done) => {
    const ask = window.requestAnimationFrame, spent = [];
    let began = null, last = 0;
    window.requestAnimationFrame = (callback) => ask((time) => {
      const start = performance.now();
      began = began ?? start;
      callback(time);
      last = performance.now();
      spent.push(last - start);
      if (last - began < 4000) return;
      spent.sort((a, b) => a - b);
      done({ frame: spent[spent.length >> 1], frames: (1000 * spent.length) / (last - began) });
    });
    document.getElementById("play").click();
  }));
  await browser.close();
  process.stdout.write(JSON.stringify({ faults, shown, frames, frame }));
}

main().catch((error) => {
  process.stderr.write(`${error.stack || error}\n`);
  process.exitCode = 1;
});

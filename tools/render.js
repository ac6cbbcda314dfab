// The browser's side of render.py: reads a plan (JSON) from stdin, takes a picture of
// each page at each width, and prints a line for each finding.
const fs = require("fs");
const path = require("path");
const { fileURLToPath } = require("url");
const puppeteer = require("puppeteer-core");

const PIECE = 1600; // px of a page in one picture

/** In the page: draws formulas and diagrams. Returns what cannot be drawn. */
async function draw() {
  const found = [];
  const said = (error) => String(error.message || error).split("\n")[0];
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const pre of document.querySelectorAll("pre[lang=math]")) {
    const block = document.createElement("div");
    block.className = "math";
    block.dataset.tex = pre.textContent;
    pre.replaceWith(block);
  }
  for (const formula of document.querySelectorAll("[data-tex]")) {
    const tex = formula.dataset.tex;
    const displayMode = formula.className === "math";
    try {
      katex.render(tex, formula, { displayMode });
    } catch (error) {
      found.push(`the formula "${tex.trim()}" is wrong: ${said(error)}`);
    }
  }
  mermaid.initialize({ startOnLoad: false });
  const sources = document.querySelectorAll("pre[lang=mermaid]");
  for (const [number, pre] of sources.entries()) {
    const block = document.createElement("div");
    block.className = "mermaid";
    try {
      const { svg } = await mermaid.render(`diagram${number}`, pre.textContent);
      block.innerHTML = svg;
      pre.replaceWith(block);
    } catch (error) {
      found.push(`diagram ${number + 1} is wrong: ${said(error)}`);
    }
  }
  await document.fonts.ready;
  return found;
}

/** In the page: returns what does not fit. `pictures` has the text of each SVG by its src. */
function measure(pictures) {
  const SMALLEST = 12; // px of a text in a diagram or picture
  const found = [];
  const quote = (text) => `"${text.replace(/\s+/g, " ").trim().slice(0, 60)}"`;
  const rect = (item) => item.getBoundingClientRect();

  // What scrolls sideways in a box of its own.
  const boxes = { table: "table", pre: "code block", ".math": "formula", ".mermaid": "diagram" };
  for (const [selector, name] of Object.entries(boxes)) {
    for (const box of document.querySelectorAll(selector)) {
      const more = box.scrollWidth - box.clientWidth;
      if (more <= 1) continue;
      const lines = box.innerText.split("\n");
      const longest = lines.reduce((a, b) => (b.length > a.length ? b : a));
      const text = box.dataset.tex || (selector === "pre" ? longest : box.innerText);
      found.push(`a ${name} is ${more} px too wide: ${quote(text)}`);
    }
  }

  // What sticks out of the column, or out of the window.
  const column = document.querySelector("article");
  const right = rect(column).right - parseFloat(getComputedStyle(column).paddingRight);
  for (const item of column.querySelectorAll("img, p, li")) {
    const more = Math.max(rect(item).right - right, item.scrollWidth - item.clientWidth);
    if (more <= 1 || item.closest("table") || !item.clientWidth) continue;
    const name = item.tagName.toLowerCase();
    found.push(`${name} sticks out by ${Math.ceil(more)} px: ${quote(item.alt || item.innerText)}`);
  }
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth)
    found.push(`the page scrolls sideways: it is ${page.scrollWidth} px wide`);

  // The texts of a drawing: how large, whole, and free of lines?
  function check(svg, name) {
    const frame = rect(svg);
    const scale = svg.getScreenCTM().a;
    const shown = (item) => item.textContent.trim() && item.getClientRects().length;
    const texts = [...svg.querySelectorAll("text, foreignObject")].filter(shown);
    const own = (item) =>
      [...item.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const sizes = texts
      .flatMap((text) => [text, ...text.querySelectorAll("*")].filter(own))
      .map((part) => [parseFloat(getComputedStyle(part).fontSize) * scale, part.textContent])
      .sort(([a], [b]) => a - b);
    if (sizes.length && sizes[0][0] < SMALLEST - 0.05)
      found.push(`${name}: the smallest text is ${sizes[0][0].toFixed(1)} px: ${quote(sizes[0][1])}`);
    for (const text of texts) {
      const { left, right, top, bottom } = rect(text);
      const out = Math.max(
        frame.left - left, right - frame.right, frame.top - top, bottom - frame.bottom);
      if (out > 2)
        found.push(`${name}: a text is cut off by ${Math.ceil(out)} px: ${quote(text.textContent)}`);
    }
    // A participant's line through a text; notes are in front of it.
    const lines = [...svg.querySelectorAll("line.actor-line")].map((line) => rect(line).left);
    for (const text of svg.querySelectorAll(".messageText, .loopText")) {
      const { left, right } = rect(text);
      if (lines.some((x) => x > left + 2 && x < right - 2))
        found.push(`${name}: a line crosses a text: ${quote(text.textContent)}`);
    }
    for (const note of svg.querySelectorAll("rect.note")) {
      for (const text of note.parentNode.querySelectorAll(".noteText"))
        if (rect(text).width > rect(note).width + 1)
          found.push(`${name}: a note is wider than its box: ${quote(text.textContent)}`);
    }
  }
  for (const [number, svg] of document.querySelectorAll(".mermaid > svg").entries())
    check(svg, `diagram ${number + 1}`);
  for (const image of column.querySelectorAll("img")) {
    const name = image.getAttribute("src");
    const { naturalWidth: has, clientWidth: width } = image;
    if (!has) {
      found.push(`${name} cannot be shown`);
    } else if (name in pictures) {
      // The same drawing, as wide as the picture is shown, in the page itself.
      const holder = document.createElement("div");
      holder.style.cssText = "position: absolute; top: 0; left: 0";
      const shadow = holder.attachShadow({ mode: "open" });
      shadow.innerHTML = pictures[name].replace(/^[^]*?(?=<svg)/, "");
      document.body.append(holder);
      const svg = shadow.querySelector("svg");
      svg.style.cssText = `width: ${width}px; height: auto`;
      check(svg, name);
      holder.remove();
    } else if (width > 100 && innerWidth < 1000 && has < 1.8 * width) {
      // A wide window shows it larger than fine screens need; the narrow one counts.
      const less = `${name} has ${has} px and is shown ${width} px wide`;
      found.push(`${less}: make it twice as large, or an SVG`);
    }
  }
  return found;
}

/** Returns the text of each SVG that a page shows, by its src. */
async function drawings(page) {
  const images = await page.$$eval("article img", (those) =>
    those.map((image) => [image.getAttribute("src"), image.src]));
  const found = {};
  for (const [name, url] of images) {
    if (!url.startsWith("file:") || !url.endsWith(".svg")) continue;
    const file = fileURLToPath(url);
    if (fs.existsSync(file)) found[name] = fs.readFileSync(file, "utf8");
  }
  return found;
}

/** Takes the pictures of a page, in pieces from top to bottom. */
async function photograph(page, width, base) {
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  await page.setViewport({ width, height });
  for (let y = 0, piece = 1; y < height; y += PIECE, piece += 1) {
    const clip = { x: 0, y, width, height: Math.min(PIECE, height - y) };
    await page.screenshot({ path: `${base}-${width}-${piece}.png`, clip });
  }
}

async function main() {
  const plan = JSON.parse(fs.readFileSync(0, "utf8"));
  const args = ["--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"];
  if (plan.root) args.push("--no-sandbox");
  const browser = await puppeteer.launch({ executablePath: plan.browser, args });
  try {
    for (const { url, name } of plan.pages) {
      const page = await browser.newPage();
      await page.setViewport({ width: plan.widths[0], height: 800 });
      await page.goto(url, { waitUntil: "load", timeout: 120000 });
      for (const line of await page.evaluate(draw)) console.log(`${name}: ${line}`);
      const pictures = await drawings(page);
      for (const width of plan.widths) {
        await page.setViewport({ width, height: 800 });
        const found = await page.evaluate(measure, pictures);
        for (const line of found) console.log(`${name} at ${width} px: ${line}`);
        await photograph(page, width, path.join(plan.out, name.replaceAll("/", "-")));
      }
      await page.close();
    }
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error.message.split("\n")[0]);
  process.exit(1);
});

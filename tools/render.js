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

/** In the page: returns what does not fit. `pictures` has the SVG of each <img> by its src. */
function measure(pictures) {
  const SMALLEST = 12; // px of a text in a diagram or picture
  const found = [];
  const start = (text) => `"${text.replace(/\s+/g, " ").trim().slice(0, 60)}"`;

  // What scrolls sideways.
  const names = { TABLE: "table", PRE: "code block", DIV: "formula or diagram" };
  for (const box of document.querySelectorAll("table, pre, .math, .mermaid")) {
    const more = box.scrollWidth - box.clientWidth;
    if (more <= 1) continue;
    const lines = box.innerText.split("\n");
    const long = lines.reduce((a, b) => (b.length > a.length ? b : a));
    const text = start(box.tagName === "PRE" ? long : box.dataset.tex || box.innerText);
    found.push(`a ${names[box.tagName]} is ${more} px too wide: ${text}`);
  }
  // What sticks out of the column, or of the window.
  const column = document.querySelector("article");
  const style = getComputedStyle(column);
  const right = column.getBoundingClientRect().right - parseFloat(style.paddingRight);
  for (const item of document.querySelectorAll("article img, article p, article li, [data-tex]")) {
    const more = Math.max(item.getBoundingClientRect().right - right, item.scrollWidth - item.clientWidth);
    if (more <= 1 || item.closest("table, .math") || getComputedStyle(item).display === "inline") continue;
    found.push(`${item.tagName.toLowerCase()} sticks out by ${Math.ceil(more)} px: ${start(item.alt || item.innerText)}`);
  }
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth)
    found.push(`the page scrolls sideways: it is ${page.scrollWidth} px wide`);

  // The texts of a drawing: how large, whole, and free of lines?
  function texts(svg, name) {
    const frame = svg.getBoundingClientRect();
    const scale = svg.getScreenCTM().a;
    let small = null;
    const lines = [...svg.querySelectorAll("line.actor-line, line[class*=actor]")];
    const leaves = [...svg.querySelectorAll("text, foreignObject")].filter(
      (item) => item.textContent.trim() && item.getClientRects().length);
    for (const item of leaves) {
      for (const part of [item, ...item.querySelectorAll("*")]) {
        if (![...part.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())) continue;
        const size = parseFloat(getComputedStyle(part).fontSize) * scale;
        if (size < SMALLEST - 0.05 && !(small && small.size <= size)) small = { size, text: item.textContent };
      }
      const box = item.getBoundingClientRect();
      const out = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
      if (out > 2) found.push(`${name}: a text is cut off by ${Math.ceil(out)} px: ${start(item.textContent)}`);
      const child = item.tagName === "foreignObject" && item.firstElementChild;
      if (child && child.scrollWidth > item.clientWidth + 1 && child.scrollWidth * scale > box.width + 1)
        found.push(`${name}: a text is wider than its box: ${start(item.textContent)}`);
      // A participant's line through a message that passes it; notes and boxes are in front.
      if (item.matches(".messageText, .loopText") && lines.some((line) => {
        const x = line.getBoundingClientRect().left;
        return x > box.left + 2 && x < box.right - 2;
      })) found.push(`${name}: a line crosses a text: ${start(item.textContent)}`);
    }
    if (small) found.push(`${name}: the smallest text is ${small.size.toFixed(1)} px: ${start(small.text)}`);
    // A note in front of its own box.
    for (const note of svg.querySelectorAll("rect.note")) {
      const box = note.getBoundingClientRect();
      for (const text of note.parentNode.querySelectorAll(".noteText")) {
        const more = text.getBoundingClientRect().width - box.width;
        if (more > 1) found.push(`${name}: a note is wider than its box: ${start(text.textContent)}`);
      }
    }
  }
  for (const [number, svg] of document.querySelectorAll(".mermaid > svg").entries())
    texts(svg, `diagram ${number + 1}`);
  for (const image of document.querySelectorAll("article img")) {
    const name = image.getAttribute("src");
    if (!image.naturalWidth) {
      found.push(`${name} cannot be shown`);
    } else if (name in pictures) {
      // The same drawing, as wide as the picture is shown, in the page itself.
      const holder = document.createElement("div");
      holder.style.cssText = `position: absolute; top: 0; left: 0; width: ${image.clientWidth}px`;
      holder.attachShadow({ mode: "open" }).innerHTML = pictures[name].replace(/^[^]*?(?=<svg)/, "");
      document.body.append(holder);
      const svg = holder.shadowRoot.querySelector("svg");
      svg.style.width = `${image.clientWidth}px`;
      svg.style.height = "auto";
      texts(svg, name);
      holder.remove();
    } else if (image.clientWidth > 100 && innerWidth < 1000 && image.naturalWidth < 1.8 * image.clientWidth) {
      found.push(`${name} has ${image.naturalWidth} px and is shown ${image.clientWidth} px wide: make it twice as large, or an SVG`);
    }
  }
  return found;
}

/** Returns the text of each SVG that a page shows, by its src. */
async function drawings(page) {
  const sources = await page.$$eval("article img", (images) =>
    images.map((image) => [image.getAttribute("src"), image.src]));
  const local = sources.filter(([, url]) => url.startsWith("file:") && url.endsWith(".svg"));
  const there = local.map(([name, url]) => [name, fileURLToPath(url)]).filter(([, file]) => fs.existsSync(file));
  return Object.fromEntries(there.map(([name, file]) => [name, fs.readFileSync(file, "utf8")]));
}

async function main() {
  const plan = JSON.parse(fs.readFileSync(0, "utf8"));
  const args = ["--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files", ...(plan.root ? ["--no-sandbox"] : [])];
  const browser = await puppeteer.launch({ executablePath: plan.browser, headless: true, args });
  try {
    for (const { url, name } of plan.pages) {
      const page = await browser.newPage();
      await page.setViewport({ width: plan.widths[0], height: 800 });
      await page.goto(url, { waitUntil: "load", timeout: 120000 });
      for (const line of await page.evaluate(draw)) console.log(`${name}: ${line}`);
      const pictures = await drawings(page);
      for (const width of plan.widths) {
        await page.setViewport({ width, height: 800 });
        for (const line of await page.evaluate(measure, pictures)) console.log(`${name} at ${width} px: ${line}`);
        const height = await page.evaluate(() => document.documentElement.scrollHeight);
        await page.setViewport({ width, height });
        for (let y = 0, piece = 1; y < height; y += PIECE, piece += 1) {
          const file = `${name.replaceAll("/", "-")}-${width}-${piece}.png`;
          const clip = { x: 0, y, width, height: Math.min(PIECE, height - y) };
          await page.screenshot({ path: path.join(plan.out, file), clip });
        }
      }
      await page.close();
    }
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(`Error: ${error.message}`);
  process.exit(1);
});

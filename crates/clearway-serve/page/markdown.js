// Markdown to elements. Text of a model only ever becomes text nodes: nothing of it is parsed as markup.
function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Code, strong, emphasised and links inside a line.
function inline(parent, text) {
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/;
  let rest = text;
  for (let found = pattern.exec(rest); found; found = pattern.exec(rest)) {
    parent.append(rest.slice(0, found.index));
    const [, code, strong, emphasis, label, address] = found;
    if (code) parent.append(element("code", code));
    else if (strong) parent.append(element("strong", strong));
    else if (emphasis) parent.append(element("em", emphasis));
    else parent.append(element("a", label, { href: address, rel: "noopener noreferrer", target: "_blank" }));
    rest = rest.slice(found.index + found[0].length);
  }
  parent.append(rest);
}

function codeBlock(lines, language) {
  const block = element("pre", "", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" });
  const copy = element("button", "Copy", { type: "button" });
  const code = element("code", lines.join("\n"));
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  block.append(copy, code);
  return block;
}

// The elements of a text.
function markdown(text) {
  const out = document.createDocumentFragment();
  const lines = text.split("\n");
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const made = element("p");
    paragraph.forEach((line, at) => {
      if (at) made.append(element("br"));
      inline(made, line);
    });
    out.append(made);
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const fence = /^\s*```(.*)$/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    const item = /^\s*(?:([-*+])|(\d+)[.)])\s+(.*)$/.exec(line);
    if (fence) {
      flush();
      const code = [];
      for (at += 1; at < lines.length && !/^\s*```/.test(lines[at]); at += 1) code.push(lines[at]);
      out.append(codeBlock(code, fence[1].trim()));
    } else if (heading) {
      flush();
      const made = element(heading[1].length < 3 ? "h2" : "h3");
      inline(made, heading[2]);
      out.append(made);
    } else if (item) {
      flush();
      const kind = item[1] ? "UL" : "OL";
      let list = out.lastChild;
      if (!list || list.nodeName !== kind) {
        list = element(kind);
        if (item[2]) list.setAttribute("start", item[2]);
        out.append(list);
      }
      const made = element("li");
      inline(made, item[3]);
      list.append(made);
    } else if (line.trim() === "") {
      flush();
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return out;
}

for (const block of document.querySelectorAll("pre")) {
 const text = block.textContent, button = Object.assign(document.createElement("button"), { textContent: "Copy" });
 button.onclick = () => navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; });
 block.prepend(button);
}

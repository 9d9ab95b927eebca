// Provides the scripts that connect bash, zsh and fish to isulad-ts complete.

export const bashScript = [
  "# Completion of isulad-ts for bash: source <(isulad-ts completion bash)",
  "_isulad_ts() {",
  "  local line=${COMP_LINE:0:COMP_POINT} words before IFS=$' \\t\\n'",
  '  read -ra words <<<"$line"',
  '  [[ $line == *[[:space:]] ]] && words+=("")',
  "  IFS=$'\\n'",
  '  COMPREPLY=($("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null | cut -f1))',
  "  # readline replaces only what follows the last colon or equals sign",
  '  before=${words[-1]%"${words[-1]##*[:=]}"}',
  '  COMPREPLY=("${COMPREPLY[@]#"$before"}")',
  "}",
  "complete -o bashdefault -o default -F _isulad_ts isulad-ts",
].join("\n");

export const zshScript = [
  "#compdef isulad-ts",
  "# Completion of isulad-ts for zsh: source <(isulad-ts completion zsh)",
  "_isulad_ts() {",
  "  local line about",
  "  local -a found",
  '  for line in "${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do',
  "    [[ -n $line ]] || continue",
  '    about=""',
  "    [[ $line == *$'\\t'* ]] && about=\":${${line#*$'\\t'}//:/\\\\:}\"",
  "    found+=(\"${${line%%$'\\t'*}//:/\\\\:}$about\")",
  "  done",
  "  if (( ${#found} )); then _describe isulad-ts found; else _files; fi",
  "}",
  'if [[ ${funcstack[1]} == _isulad_ts ]]; then _isulad_ts "$@"; else compdef _isulad_ts isulad-ts; fi',
].join("\n");

export const fishScript = [
  "# Completion of isulad-ts for fish: isulad-ts completion fish | source",
  "function __isulad_ts",
  "    set -l words (commandline -opc)",
  "    set -l found ($words[1] complete -- $words[2..-1] (commandline -ct) 2>/dev/null)",
  "    if test (count $found) -gt 0",
  "        printf '%s\\n' $found",
  "    else",
  "        __fish_complete_path (commandline -ct)",
  "    end",
  "end",
  "complete -c isulad-ts -f -a '(__isulad_ts)'",
].join("\n");

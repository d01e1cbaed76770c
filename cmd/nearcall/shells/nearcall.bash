# Completion of nearcall for bash. Source it: source <(nearcall completion bash)

_nearcall() {
    # Bash splits words at colons. Join what has no space in between, which is what follows
    # a colon or begins with one.
    local words=() word joined=
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( $joined || $word == :* ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        if [[ $word == *: && $word != [\'\"]* ]]; then joined=1; else joined=; fi
    done
    local cur=${words[-1]}
    # After a space the word is a new one.
    if [[ -z ${COMP_WORDS[COMP_CWORD]} && ${COMP_LINE:COMP_POINT-1:1} == ' ' && -n $cur ]]; then
        words+=('')
        cur=
    fi
    COMPREPLY=()
    local candidate behind=${cur%"${cur##*:}"}
    while IFS= read -r candidate; do
        case $candidate in *: | */) compopt -o nospace ;; esac
        COMPREPLY+=("${candidate#"$behind"}")
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
}
complete -o default -F _nearcall nearcall

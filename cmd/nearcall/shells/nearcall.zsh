#compdef nearcall
# Completion of nearcall for zsh. Source it after compinit: source <(nearcall completion zsh)

_nearcall() {
    local -a all open
    all=("${(@f)$("${words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    open=("${(@M)all:#*[:/]}")
    all=("${(@)all:#*[:/]}")
    # Behind a colon or a slash the word goes on.
    (( ${#open} )) && compadd -S '' -- "${(@)open}"
    [[ -n "$all" ]] && compadd -- "${(@)all}"
}
compdef _nearcall nearcall

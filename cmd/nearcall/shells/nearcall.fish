# Completion of nearcall for fish: nearcall completion fish | source

function __nearcall_complete
    set -l words (commandline -opc)
    command $words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c nearcall -f -a '(__nearcall_complete)'

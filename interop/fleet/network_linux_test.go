package fleet

import (
	"fmt"
	"os/exec"
	"strings"
)

// A network is a switch on the clients' machine, and machines that are connected with it. All are
// network namespaces.
type network struct {
	prefix string // of the names of namespaces
}

// clients is the machine that the tests run on. The others have numbers: the servers' 1 to 5, etcd's
// 11 to 13.
const clients = 0

func (n network) name(machine int) string { return fmt.Sprint(n.prefix, "-", machine) }

func address(machine int) string { return fmt.Sprint("10.77.0.", machine+1) }

// servers and members are the machines of the servers and of etcd.
var (
	servers = []int{1, 2, 3, 4, 5}
	members = []int{11, 12, 13}
)

// start makes the namespaces.
func (n network) start() error {
	err := n.run("netns add NAME", clients)
	for _, line := range []string{"link set lo up", "link add switch type bridge", "addr add ADDRESS/24 dev switch", "link set switch up"} {
		if err == nil {
			err = n.run("-n NAME "+line, clients)
		}
	}
	for _, m := range append(servers[:len(servers):len(servers)], members...) {
		for _, line := range []string{
			"netns add NAME", "-n NAME link set lo up",
			"-n CLIENTS link add PORT type veth peer name eth0 netns NAME",
			"-n CLIENTS link set PORT master switch up",
			"-n NAME addr add ADDRESS/24 dev eth0", "-n NAME link set eth0 up",
		} {
			if err == nil {
				err = n.run(line, m)
			}
		}
	}
	return err
}

// end removes the namespaces, with all in them.
func (n network) end() {
	for _, m := range append(append([]int{clients}, servers...), members...) {
		_ = n.run("netns del NAME", m)
	}
}

// cut makes the switch forget a machine: what is sent to and by it gets lost.
func (n network) cut(machine int) error { return n.run("-n CLIENTS link set PORT nomaster", machine) }

// mend connects it again.
func (n network) mend(machine int) error {
	return n.run("-n CLIENTS link set PORT master switch", machine)
}

// slow limits what a machine gets to a rate such as 1mbit; "" ends that.
func (n network) slow(machine int, rate string) error {
	if rate == "" {
		return n.tool("tc", "-n CLIENTS qdisc del dev PORT root", machine)
	}
	if err := n.tool("tc", "-n CLIENTS qdisc add dev PORT root handle 1: htb default 1", machine); err != nil {
		return err
	}
	return n.tool("tc", "-n CLIENTS class add dev PORT parent 1: classid 1:1 htb rate "+rate, machine)
}

// run runs ip with the words of a line, in which NAME and CLIENTS are the namespaces of the machine and
// of the clients, ADDRESS is the machine's, and PORT the switch's end of its link.
func (n network) run(line string, machine int) error { return n.tool("ip", line, machine) }

func (n network) tool(tool, line string, machine int) error {
	line = strings.NewReplacer("NAME", n.name(machine), "CLIENTS", n.name(clients), "ADDRESS", address(machine), "PORT", fmt.Sprint("port", machine)).Replace(line)
	if out, err := exec.Command(tool, strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", tool, line, err, out)
	}
	return nil
}

// command returns a command that runs on a machine.
func (n network) command(machine int, name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.name(machine), name}, args...)...)
}

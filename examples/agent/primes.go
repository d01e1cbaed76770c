package agent

import (
	"google.golang.org/grpc"

	pb "github.com/nearcall/nearcall/examples/agent/agentpb"
)

// Primes is an agent's service that counts prime numbers.
type Primes struct {
	pb.UnimplementedAgentServer
	Every uint64 // how many numbers it examines between two reports; 1 million if 0
}

// Run implements the service.
func (p Primes) Run(job *pb.Job, stream grpc.ServerStreamingServer[pb.Progress]) error {
	every := p.Every
	if every == 0 {
		every = 1e6
	}
	report := &pb.Progress{Next: job.GetFrom()}
	for report.Next < job.GetTo() {
		for end := report.Next + min(every, job.GetTo()-report.Next); report.Next < end; report.Next++ {
			if isPrime(report.Next) {
				report.Primes++
			}
		}
		if err := stream.Send(report); err != nil { // also if the call was cancelled
			return err
		}
	}
	return nil
}

func isPrime(n uint64) bool {
	if n < 4 || n%2 == 0 {
		return n == 2 || n == 3
	}
	for d := uint64(3); d <= n/d; d += 2 {
		if n%d == 0 {
			return false
		}
	}
	return true
}

package main

import "time"

// maxLatencies is the greatest number of calls that a measurement times individually.
const maxLatencies = 50_000

// An entrant is a field and its measurements.
type entrant struct {
	field     *Field
	ops       int // per measurement
	latencies []time.Duration
	samples   []Sample
	ratios    []float64 // of its time to the baseline's, one for each pair
	cpuRatios []float64
}

// enter prepares a rival for a row, warms it up and determines how many operations a
// measurement has.
func (t *Tournament) enter(row Row, rival Rival) (*entrant, error) {
	f, err := Open(row, rival)
	if err != nil {
		return nil, err
	}
	e := &entrant{field: f}
	if e.ops, err = f.Calibrate(t.Time); err != nil {
		_ = f.Close()
		return nil, err
	}
	if row.Kind.Unary {
		e.latencies = make([]time.Duration, min((e.ops+1)/2, maxLatencies))
	}
	return e, nil
}

func (e *entrant) measure() error {
	s, err := e.field.Measure(e.ops, e.latencies)
	e.samples = append(e.samples, s)
	return err
}

func (e *entrant) last() Sample { return e.samples[len(e.samples)-1] }

// leave closes the field. It returns err, or if that is nil the error of closing.
func (e *entrant) leave(err error) error {
	if closing := e.field.Close(); err == nil {
		err = closing
	}
	return err
}

// result returns the medians of the samples. The ratio of the baseline, which is not
// paired with itself, is 1.
func (e *entrant) result() Result {
	of := func(number func(Sample) float64) float64 {
		values := make([]float64, len(e.samples))
		for i, s := range e.samples {
			values[i] = number(s)
		}
		return median(values)
	}
	r := Result{
		Row: e.field.Row, Rival: e.field.Rival,
		Ns: of(Sample.NsPerOp), Bytes: of(Sample.bytesPerOp), Allocs: of(Sample.allocsPerOp),
		CPU:   of(Sample.cpuPerOp),
		Ratio: 1, CPURatio: 1,
	}
	for i := range r.Latency {
		r.Latency[i] = of(func(s Sample) float64 { return s.Latency[i] })
	}
	if len(e.ratios) > 0 {
		r.Ratio, r.CPURatio = median(e.ratios), median(e.cpuRatios)
	}
	return r
}

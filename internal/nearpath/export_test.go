package nearpath

// What the tests use that run a listener of package sock, which imports this package.

type (
	Nonce = nonce
	Ends  = ends
)

const MaxIntroductions = maxIntroductions

var (
	NewNonce           = newNonce
	ReadHello          = readHello
	HelloOf            = helloOf
	OfferOf            = offerOf
	EndsOf             = endsOf
	AppendIntroduction = appendIntroduction
	ErrForeignName     = errForeignName
)

// OffersOf returns the Offers with a name.
func OffersOf(name string) *Offers {
	s, _ := named.Load(name)
	return s.(*Offers)
}

// Has reports whether s has an offer with the nonce n that was not taken.
func (s *Offers) Has(n Nonce) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[n] != nil
}

// Take takes an offer as a client does.
func (s *Offers) Take(n Nonce, client Ends) error {
	_, err := s.take(n, client)
	return err
}

// Rename makes s offer another name, at which it does not listen.
func (s *Offers) Rename(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	named.Delete(s.name)
	s.name = name
}

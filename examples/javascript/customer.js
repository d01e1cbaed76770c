// A customer of the wholesaler, which serves Orders. While it awaits, its timers go on.
(async () => {
	let ticks = 0;
	const ticking = setInterval(() => ticks++, 1);
	try {
		const seen = { placed: 0, refused: '', listed: 0, price: 0 };

		// All of them are on their way before the first is answered.
		const customer = 'customer';
		const placed = await Promise.all([1, 2, 3].map(quantity => wholesaler.place({ customer, item: 'tea', quantity })));
		seen.placed = placed.length;

		try {
			await wholesaler.place({ customer, item: 'caviar', quantity: 1 });
		} catch (error) {
			seen.refused = `${error.message} (code ${error.code}, ${error.details[0].left} left)`;
		}

		const list = await wholesaler.list({ customer });
		for (let order; (order = await list.recv()) !== null;) seen.listed += order.quantity;

		const talk = await wholesaler.haggle();
		for (let cents = 100; seen.price === 0; cents += 100) {
			await talk.send({ item: 'tea', cents });
			const answer = await talk.recv();
			if (answer.accepted) seen.price = answer.askCents;
		}
		await talk.recv(); // the end

		// The order is shipped by and by; this call waits for it, and the timer does not.
		const before = ticks;
		await wholesaler.await({ id: placed[0].id });
		seen.ticksMeanwhile = ticks - before;
		return seen;
	} finally {
		clearInterval(ticking);
	}
})();

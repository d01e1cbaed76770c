// A shop, as the service Orders. Its state is plain: one function runs at a time, and
// another only while it awaits.
const stock = new Map();
const orders = []; // the order with number n is orders[n - 1]
const batch = 100; // what the wholesaler is asked for at a time
let bought = 0;

const left = item => stock.get(item) ?? 0;

// What others do while this awaits may have taken what came, so that it looks again.
async function provide(item, quantity, signal) {
	while (left(item) < quantity) {
		const got = await wholesaler.place({ customer: 'shop', item, quantity: batch }, { signal });
		stock.set(item, left(item) + got.quantity);
		bought += got.quantity;
	}
}

async function place({ customer, item, quantity }, signal) {
	if (quantity <= 0) throw new StatusError(codes.InvalidArgument, 'quantity must be positive');
	await provide(item, quantity, signal);
	stock.set(item, left(item) - quantity);
	const order = { id: String(orders.length + 1), customer, item, quantity, shipped: false };
	const shipped = new Promise(resolve => setTimeout(() => {
		order.shipped = true;
		resolve();
	}, 1));
	orders.push({ order, shipped });
	return order;
}

const shop = {
	place: (request, call) => place(request, call.signal),

	async await({ id }) {
		const known = orders[id - 1];
		if (!known) throw new StatusError(codes.NotFound, `there is no order ${id}`);
		await known.shipped;
		return known.order;
	},

	async list({ customer }, call) {
		for (const { order } of orders.slice()) {
			if (order.customer === customer) await call.send(order);
		}
	},

	async import(call) {
		const reply = { placed: 0, refused: 0 };
		for (let request; (request = await call.recv()) !== null;) {
			try {
				await place(request, call.signal);
				reply.placed++;
			} catch (error) {
				if (!(error instanceof StatusError)) throw error;
				reply.refused++;
			}
		}
		return reply;
	},

	// It asks for the middle between the offer and what it asked for before.
	async haggle(call) {
		let ask = 1000;
		for (let offer; (offer = await call.recv()) !== null;) {
			ask = Math.trunc((ask + offer.cents) / 2);
			const accepted = ask - offer.cents < 50;
			await call.send({ accepted, askCents: ask });
			if (accepted) return;
		}
		throw new StatusError(codes.Aborted, 'the customer left');
	},
};
